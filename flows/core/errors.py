"""The one way to fail: every error that a person can mend says what happened, why, and what to do.

`RefitError` is the root. `cli.main()` prints it without a traceback and exits with its `exit_code`;
any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RefitError(Exception):
    """An error for people: what happened, why, and what to do about it."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        self.what, self.why, self.hint = what, why, hint
        super().__init__(what)

    @property
    def brief(self) -> str:
        """The error in short, for a cell of a table."""
        return self.what

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.hint and f"Hint: {self.hint}") if part)

    def __reduce__(self) -> tuple[object, ...]:
        # Prefect pickles exceptions; keyword arguments are lost by the default.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[RefitError], args: tuple[object, ...], state: dict[str, object]) -> RefitError:
    error = kind.__new__(kind, *args)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class Vanished(RefitError):
    """A resolved package is there no more; resolved anew, it comes out as one that is."""


class UnknownName(RefitError):
    """A name that a person typed and that is not there."""

    def __init__(self, kind: str, name: str, names: Iterable[str], *, where: str = "") -> None:
        choices = sorted(names)
        near = get_close_matches(name, choices, n=1)
        super().__init__(
            f"There is no {kind} {name!r}{f' in {where}' if where else ''}.",
            why=f"Known: {', '.join(choices)}." if choices else f"No {kind} is known yet.",
            hint=f"Did you mean {near[0]!r}?" if near else "",
        )
