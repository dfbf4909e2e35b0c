"""The weight of a session where cores are short: its own, or a higher one while somebody waits for it to come back.

The higher one is never among the options of a container: Podman 4 forgets an update when the container ends, so the
next start of one whose move was killed gives it its own weight again.
"""

from __future__ import annotations

from flows.core.settings import Settings
from flows.host import tools

PODMANS_OWN, MOST = 1024, 262_144  # of the kernel's shares
# So many sessions with work of their own may compute beside one that comes back, and it still gets half of a core.
TIMES = 8


def shares(own: int, favoured: bool) -> int:
    """The shares of a session; its own ones in settings are 0 where it has Podman's. Pure."""
    own = own or PODMANS_OWN
    return min(TIMES * own, MOST) if favoured else own


def update(settings: Settings, container: str, favoured: bool) -> list[str]:
    """The words that let Podman change the weight of a running container; none, where containers can't have any."""
    if tools.facts(settings).limits_problem:
        return []
    return ["update", f"--cpu-shares={shares(settings.session_cpu_shares, favoured)}", container]
