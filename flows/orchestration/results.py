"""References to results in states of the API are not trusted."""

from __future__ import annotations

from typing import NoReturn

from prefect import results

from flows.core.errors import RefitError

_READERS = ("_from_metadata", "_read", "_aread", "read", "aread")


def trust_none() -> None:
    """From now on, no result that a state of the API names is read in this process.

    A state can name any file and any way to read it: pickle, for instance, or a function that is called with what
    stands there. The engine reads the result of a run that somebody has called completed meanwhile. Refit stores none.
    """
    for name in _READERS:
        setattr(results.ResultStore, name, _refuse)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RefitError("A result that the Prefect server names is not read: Refit stores none.")
