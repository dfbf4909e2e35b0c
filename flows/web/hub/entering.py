"""A link that logs somebody in once, from this machine, and opens a session. `refit demo` ends with one."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlencode

from jupyterhub.handlers import BaseHandler
from tornado import web  # type: ignore[attr-defined]

from flows.core.settings import Settings
from flows.gateway import routes
from flows.web.authorizer import passes
from flows.web.hub import accounts
from flows.web.hub.spawner import settings

PATH = "/enter"
# Seconds. The person who has just typed the command presses it soon.
SECONDS = 1800.0


def folder(chosen: Settings) -> Path:
    """Where the hashes of such links are, and whom each logs in."""
    return chosen.folder("services", "hub", "entries")


def link(chosen: Settings, person: str, path: str) -> str:
    """A link for somebody who has an account; an older one of theirs doesn't work any more.

    Args:
        chosen: the settings.
        person: the person whom it logs in.
        path: of the gateway, which is opened then.

    Raises:
        RefitError: nobody can be called so.
    """
    code = accounts.invite(folder(chosen), person, SECONDS)
    return f"{chosen.public_url}{routes.HUB}{PATH}?{urlencode({'code': code, 'next': path})}"


def is_here(peers: str) -> bool:
    """Whether a request came from this machine: the last address is the gateway's own word. Pure."""
    try:
        return ip_address(peers.rpartition(",")[2].strip().removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


class EnterHandler(BaseHandler):
    """Logs somebody in by such a link, and leads them on."""

    async def get(self) -> None:
        """Use the link up, wherever it is pressed; it lets somebody in on this machine alone."""
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        entry = accounts.take(folder(settings()), self.get_argument("code", ""))
        if entry is None:
            raise web.HTTPError(410, "This link was used already, or has expired. `refit demo` prints another one.")
        if not is_here(self.request.headers.get("X-Forwarded-For", "")):
            raise web.HTTPError(403, "This link works on the machine on which it was printed.")
        if self.find_user(entry.person) is None:
            raise web.HTTPError(410, f"{entry.person} has no account any more.")
        self.set_login_cookie(await self.auth_to_user({"name": entry.person, "admin": None}))
        # The pass of somebody else who was logged in here.
        self.clear_cookie(passes.PASS, path=routes.BELOW)
        to = self.get_argument("next", "")
        self.redirect(to if routes.session(to) and "//" not in to else f"{self.hub.base_url}home")
