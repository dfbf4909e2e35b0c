"""The say of Refit in what jupyterhub-idle-culler stops: a server whose session nobody and nothing works in.

The Hub sees pages and kernels that report to it. It sees neither a silent computation nor a login by ssh, and of a
session behind Refit's gateway nobody who types. Refit looks into the session itself, as before each move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import lru_cache

from flows.core.settings import Settings, load
from flows.sessions.activity import probes
from flows.sessions.activity.evidence import Verdict
from flows.web.people.servers import Servers

logger = logging.getLogger("refit.culling")

Arbiter = Callable[..., Awaitable[bool]]


def arbiter_of(settings: Settings) -> Arbiter:
    """The arbiter of the sessions of a Refit, as `IdleCuller.cull_arbiter_hook` wants it."""
    servers = Servers(settings)

    def is_idle(person: str, server: str, limit: float) -> bool | None:
        """Whether the session of a server is idle; none: there is no such session."""
        if (session := servers.session(person, server)) is None:
            return None
        activity = probes.probe(servers.sessions.engine, session, limit)
        logger.info("%s is %s: %s", session.name, activity.verdict.value, activity.evidence)
        return activity.verdict is Verdict.idle

    async def arbiter(
        *, inactive: timedelta | None, inactive_limit: float, server: Mapping[str, object], **_: object
    ) -> bool:
        """Whether a server may be stopped: for so many seconds it did nothing, and has nothing that a stop would lose.

        A server that is no session of this Refit is judged as the culler does by itself.
        """
        quiet_for_the_hub = inactive is not None and inactive.total_seconds() >= inactive_limit
        if not quiet_for_the_hub:
            return False
        person, _slash, name = str(server.get("full_name", "")).partition("/")
        try:
            idle = await asyncio.to_thread(is_idle, person, name, inactive_limit)
        except Exception:
            logger.exception("nobody knows whether the session of %s/%s is idle; it is left alone", person, name)
            return False
        return quiet_for_the_hub if idle is None else idle

    return arbiter


@lru_cache(maxsize=1)
def _own() -> Arbiter:
    return arbiter_of(load())


async def arbiter(**asked: object) -> bool:
    """As `arbiter_of`, of the Refit whose home `REFIT_HOME` names."""
    return await _own()(**asked)
