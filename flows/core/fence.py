"""Effects need the lease under which they are done: it is asked for right before each of them, and before tidying.

A process that was stopped for longer than its lease lasts wakes up as if nothing had happened, with all its threads:
that its lease was renewed a moment ago says nothing. So whoever has an effect calls `check`, and names what only the
holder of this very lease may reach by a path `through` the fence, which its successor takes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

Check = Callable[[], None]
_checks: ContextVar[tuple[Check, ...]] = ContextVar("checks", default=())
_number: ContextVar[int] = ContextVar("number", default=0)
_way: ContextVar[Path | None] = ContextVar("way", default=None)
_WAY = "way"


@contextmanager
def needing(check: Check, *, alone: bool = False, number: int = 0) -> Iterator[None]:
    """Let no effect begin inside the `with` block for which `check` raises; `alone`: nothing else is asked there.

    Args:
        check: raises if this process may have no more effects.
        alone: see above.
        number: of the lease; a later holder's is higher.
    """
    token = _checks.set((check,) if alone else (*_checks.get(), check))
    numbered = _number.set(number or _number.get())
    try:
        yield
    finally:
        _number.reset(numbered)
        _checks.reset(token)


def number() -> int:
    """The number of the innermost lease, for whatever refuses the effects of an earlier holder; 0: there is none."""
    return _number.get()


@contextmanager
def lifted() -> Iterator[None]:
    """Tidy inside the `with` block what bears a name of our own, whether or not anybody has taken over."""
    checks, way = _checks.set(()), _way.set(None)
    try:
        yield
    finally:
        _way.reset(way)
        _checks.reset(checks)


def checks() -> tuple[Check, ...]:
    """The checks before an effect, outermost first."""
    return _checks.get()


def check() -> None:
    """Return only while this process may have effects here.

    Raises:
        LeaseLost: somebody has taken over.
    """
    for each in _checks.get():
        each()


@contextmanager
def way_in(folder: Path) -> Iterator[None]:
    """Let paths lead `through` a folder inside the `with` block, until somebody removes what is in it."""
    (folder / _WAY).symlink_to("/")
    token = _way.set(folder / _WAY)
    try:
        yield
    finally:
        _way.reset(token)


def through(path: Path) -> Path:
    """Another path of the same thing, which leads nowhere once somebody has taken over: one call is all or nothing."""
    way = _way.get()
    return path if way is None else way / path.relative_to("/")
