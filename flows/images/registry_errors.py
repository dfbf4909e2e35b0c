"""Errors of registries."""

from __future__ import annotations

from flows.core.errors import RefitError


class RegistryError(RefitError):
    """The registry can't be reached, refuses, is full, or doesn't answer as a registry does."""


class NoAnswer(RegistryError):
    """The registry doesn't answer, or says that it is busy: later it may be there again."""


class NoImage(RegistryError):
    """The registry has no such image, or no longer."""


class BlobLost(RegistryError):
    """The registry has a manifest, but no longer all that it names."""

    def __init__(self, host: str, repository: str, digest: str) -> None:
        super().__init__(
            f"The registry {host} has lost {digest} of {repository}.",
            why="A manifest there names it. It was deleted, or the registry's storage was damaged.",
            hint="run `refit build`: it builds again what is not whole.",
        )
