"""Acts of a simulated session's user in its home and volumes."""

from __future__ import annotations

from flows.sessions.model import HomeRef
from tests.support.simulated.world import World


class SimulatedFiles:
    """Implements `homes_contract.Files`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def write(self, place: HomeRef, path: str, text: str) -> None:
        self._world.homes[place][path] = text

    def delete(self, place: HomeRef, path: str) -> None:
        del self._world.homes[place][path]

    def all(self, place: HomeRef) -> dict[str, str]:
        return dict(self._world.homes[place])
