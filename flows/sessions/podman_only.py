"""Verbs that sessions on Kubernetes don't have yet: they refuse, and say so, before anything happens."""

from __future__ import annotations

from flows.core.errors import RefitError
from flows.core.settings import Settings


class NotOnKubernetes(RefitError):
    """A verb for sessions on this machine alone, called where sessions run on Kubernetes."""

    def __init__(self, thing: str, instead: str = "") -> None:
        super().__init__(
            f"{thing}: sessions on Kubernetes don't have that yet.",
            why="The settings have `engine: kubernetes`.",
            hint=instead or "use a Refit with `engine: podman` (another REFIT_HOME) for sessions that need it.",
        )


def only_on_podman(settings: Settings, thing: str, instead: str = "") -> None:
    """Refuse a verb where sessions run on Kubernetes.

    Args:
        settings: they say where sessions run.
        thing: the feature, as the beginning of a sentence.
        instead: the hint; empty: use Podman.

    Raises:
        NotOnKubernetes: they run there.
    """
    if settings.in_cluster:
        raise NotOnKubernetes(thing, instead)
