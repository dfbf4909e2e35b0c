"""What is true of this machine: found out once, used by everything that starts containers.

Nothing here is a setting; a setting (`oci_runtime`, `isolation`) overrides what was found out.
"""

from __future__ import annotations

from flows.settings import Settings


def podman(settings: Settings) -> list[str]:
    """The start of every Podman call: program, private storage, a runtime that works here."""
    raise NotImplementedError


def run_limits(settings: Settings) -> list[str]:
    """`--ulimit …` options for `podman run` and `podman create` that stay within this machine's hard limits."""
    raise NotImplementedError


def buildah(settings: Settings) -> list[str]:
    """The start of every buildah call: program and private storage."""
    raise NotImplementedError


def isolation(settings: Settings) -> str:
    """The isolation in which `buildah build` works here: `chroot` or `oci`."""
    raise NotImplementedError
