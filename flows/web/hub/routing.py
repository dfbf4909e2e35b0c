"""JupyterHub's table of routes, kept by Refit's gateway.

The table is the gateway's, and each route has one writer. Where a session is, Refit writes: when it starts, moves or
stops. The Hub asks for the route of a server and gets that of its session; it changes nothing there. The waiting page
makes the routes to the Hub itself, and to the authorizer from the addresses of servers. The Hub writes those of its
services alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from jupyterhub.proxy import Proxy
from traitlets import Bool

from flows.core.errors import RefitError
from flows.gateway import routes
from flows.gateway.proxy import Gateway
from flows.web.hub.spawner import servers, settings

_SERVICE = "service_of_hub"
Route = Mapping[str, Any]


def as_hub_sees(
    table: Mapping[str, Route], of_servers: Mapping[str, tuple[str, str, str]], gateway: str
) -> dict[str, dict[str, Any]]:
    """The Hub's view of the gateway's routes. Pure.

    Args:
        table: path → route, as the gateway tells.
        of_servers: the Hub's path of a server → its session, its person, its name.
        gateway: URL of the gateway, where the Hub reaches every server.
    """
    seen = {
        f"{path}/": _route(f"{path}/", route["target"], route.get("data", {}))
        for path, route in table.items()
        if path == routes.HUB or _SERVICE in route
    }
    for spec, (session, person, server) in of_servers.items():
        if led := table.get(routes.path(session)):
            used = {"last_activity": led["last_activity"]} if "last_activity" in led else {}
            seen[spec] = _route(spec, gateway, {"user": person, "server_name": server, **used})
    return seen


def _route(spec: str, target: str, data: Route) -> dict[str, Any]:
    return {"routespec": spec, "target": target, "data": dict(data)}


class RefitProxy(Proxy):
    """Uses the gateway of Refit; it never starts or ends it."""

    should_start = Bool(False)

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._gateway = Gateway(settings())

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        """The routes of the Hub, of its services, and of the servers whose session the gateway knows."""
        routes = await asyncio.to_thread(self._gateway.all_routes)
        if routes is None:
            self.log.warning("The gateway doesn't answer; `refit up` starts it.")
        led = await asyncio.to_thread(servers().all)
        of_servers = {
            spawner.proxy_spec: (led[user.name][name].name, user.name, name)
            for user in self.app.users.values()
            for name, spawner in user.spawners.items()
            if name in led.get(user.name, {})
        }
        return as_hub_sees(routes or {}, of_servers, settings().gateway_url)

    async def add_route(self, routespec: str, target: str, data: Mapping[str, Any]) -> None:
        """Lead a service to its target, and a server to where its session is now, whatever the target."""
        if "user" in data:
            await asyncio.to_thread(self._lead, data["user"], data["server_name"])
        elif "hub" in data:
            await asyncio.to_thread(self._stand)
        else:
            route = {_SERVICE: True, "data": dict(data)}
            await asyncio.to_thread(self._gateway.route_service, routespec.rstrip("/"), target, route)

    async def delete_route(self, routespec: str) -> None:
        """Forget a service. In the place of a stopped session the waiting page answers already."""
        await asyncio.to_thread(self._gateway.forget_service, routespec.rstrip("/"))

    def _lead(self, person: str, server: str) -> None:
        """Tell the gateway again where a session is; one that somebody acts on is left to them."""
        if session := servers().session(person, server):
            try:
                servers().sessions.tell_gateway_of(session.name)
            except RefitError as error:
                self.log.warning("The gateway was not told of %s: %s", session.name, error)

    def _stand(self) -> None:
        self._gateway.add_fixed_routes(self._gateway.table() or {})
