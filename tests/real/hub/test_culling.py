"""jupyterhub-idle-culler with Refit's say: it stops sessions in which nobody and nothing works, and no others."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from jupyterhub_idle_culler import cull_idle

from flows.sessions.model import Running
from flows.web.hub.culling import arbiter_of
from flows.web.people import client
from tests.support.hub import Hub
from tests.support.waiting import wait_until

BUSY = "setsid python3 -c 'while True: pass' >/dev/null 2>&1 </dev/null & echo $!"


def cull(hub: Hub, seconds: float = 0.1) -> None:
    """Let the culler look once."""
    url, token = f"{hub.settings.hub_url}/hub/api", client.token(hub.settings)
    arbiter = arbiter_of(hub.settings)
    asyncio.run(cull_idle(url, token, seconds, logging.getLogger("culler"), cull_arbiter=arbiter))


def test_a_culler_leaves_a_session_that_works_and_stops_one_that_is_idle(hub: Hub) -> None:
    culled = hub.person("dora")
    culled.start()
    assert culled.reaches("/user/dora/api") == "dora"
    wait_until(lambda: hub.server("dora", ""))
    pid = hub.sessions.execute("dora", ["sh", "-c", BUSY]).strip()
    cull(hub)
    assert hub.sessions.show("dora").running is Running.running and hub.server("dora", "")
    cull(hub, seconds=3600)
    assert hub.server("dora", "")
    hub.sessions.execute("dora", ["kill", "-9", pid])
    wait_until(lambda: cull(hub) or not hub.server("dora", ""))
    assert hub.sessions.show("dora").running is Running.stopped
    assert culled.client.get("/user/dora/api").url.path.startswith("/hub/")


@pytest.mark.parametrize("server", [{"full_name": "nobody/none"}, {}])
def test_a_server_that_is_no_session_is_judged_as_the_culler_does(hub: Hub, server: dict[str, str]) -> None:
    judge = arbiter_of(hub.settings)
    assert asyncio.run(judge(inactive=timedelta(seconds=9), inactive_limit=8, server=server))
    assert not asyncio.run(judge(inactive=timedelta(seconds=9), inactive_limit=10, server=server))
    assert not asyncio.run(judge(inactive=None, inactive_limit=0, server=server))
