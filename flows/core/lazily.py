"""`lazy from … import …`, which Python 3.15 has (PEP 810): a module is imported once one of its names is used.

The command line imports so what its verbs work with, for `--help` and completion use none of it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def lazily(scope: dict[str, Any]) -> Iterator[None]:
    """Import nothing inside the `with` block: each name stands for what it names until that is used.

    The name may be called, asked for attributes, gone through, and be a class for `isinstance`; from then on it is the
    thing itself. It must not be passed on, compared or caught before: `tests/unit/core/test_lazily.py` holds that.

    Args:
        scope: the `globals()` of the module that imports.

    Raises:
        ImportError: a module is imported in another way, as by `import x.y`.
    """
    with _putting_off(lambda importing, _: importing is scope):
        yield


@contextmanager
def lazily_in(module: str, *others: str) -> Iterator[None]:
    """As `lazily`, for what a module of a library takes `from` others; it is imported inside the `with` block."""
    with _putting_off(lambda importing, name: importing.get("__name__") == module and name in others):
        yield


def import_all(scope: dict[str, Any]) -> None:
    """Import all that was put off, for those who read annotations."""
    for value in [*scope.values()]:
        if isinstance(value, _Name):
            _thing(value)


@contextmanager
def _putting_off(whether: Callable[[Mapping[str, object], str], bool]) -> Iterator[None]:
    eager = builtins.__import__

    def put_off(
        name: str,
        importing: dict[str, Any] | None = None,
        local: Mapping[str, object] | None = None,
        names: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if importing is None or not whether(importing, name):
            return eager(name, importing, local, names or (), level)
        if level or (not names and "." in name):
            raise ImportError(f"only `import x` and `from {name} import …` can be put off", name=name)
        return _Module(name, importing) if names else _Name(name, "", importing)

    builtins.__import__ = put_off  # type: ignore[assignment]  # it stands for a module
    try:
        yield
    finally:
        builtins.__import__ = eager


class _Module:
    """A module that was not imported: its names are put off."""

    def __init__(self, name: str, scope: dict[str, Any]) -> None:
        self._name, self._scope = name, scope

    def __getattr__(self, name: str) -> _Name:
        return _Name(self._name, name, self._scope)


class _Name:
    """A name of a module that was not imported; an empty one is the module itself."""

    def __init__(self, module: str, name: str, scope: dict[str, Any]) -> None:
        self._module, self._name, self._scope = module, name, scope

    def __call__(self, *words: Any, **more: Any) -> Any:
        return _thing(self)(*words, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(_thing(self), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(_thing(self))

    def __or__(self, _: object) -> _Name:
        return self  # in an annotation that nobody reads

    __ror__ = __or__

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _thing(self))


def _thing(put_off: _Name) -> Any:
    """The object that a name stands for; its module has it under that name from now on."""
    module = __import__(put_off._module, fromlist=(put_off._name,))
    thing = getattr(module, put_off._name) if put_off._name else module
    for name, value in [*put_off._scope.items()]:
        if value is put_off:
            put_off._scope[name] = thing
    return thing
