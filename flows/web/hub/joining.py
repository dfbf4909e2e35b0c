"""Lets a JupyterHub that isn't Refit's start sessions. Its `jupyterhub_config.py` calls this last:

    from flows.web.hub import joining

    joining.configure(c)

The Hub's own proxy leads `/session/…` to the gateway, which asks the authorizer about each request, and the authorizer
logs people in at that Hub. So the Hub stays in front, and sessions are behind the same checks as everywhere.
"""

from __future__ import annotations

from typing import Any

from jupyterhub.handlers import default_handlers
from traitlets.config import LazyConfigValue

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.gateway import routes
from flows.web.authorizer.admission import CALLBACK
from flows.web.hub import accepting, registration, rights_handler
from flows.web.hub.spawner import settings
from flows.web.people import client
from flows.web.people.scopes import definitions

# Rights of Refit itself at the Hub: list people, invite and remove them, share, and tell of sessions that run.
SCOPES = ("admin:users", "admin:servers", "delete:users", "proxy", "shares", "read:groups")
# By the first right the Hub tells the authorizer who they are. With the others people share their own sessions with
# those, and with groups, whose names they know; nobody lists names.
SCOPES_OF_ALL = (
    f"access:services!service={rights_handler.SERVICE}",
    *("shares!user", "read:users:name", "read:groups:name"),
)
# Seconds. A first start pulls the image.
START_SECONDS, POLL_SECONDS = 1800, 15


def services(chosen: Settings) -> list[dict[str, Any]]:
    """The authorizer and the page of sessions, as JupyterHub wants them in `services`."""
    login = {"oauth_client_id": client.OAUTH_CLIENT, "oauth_redirect_uri": CALLBACK, "oauth_no_confirm": True}
    return [
        {"name": rights_handler.SERVICE, "api_token": client.token(chosen), **login},
        registration.service(chosen),
    ]


def roles() -> list[dict[str, Any]]:
    """The rights of these two."""
    own = {"name": rights_handler.SERVICE, "scopes": list(SCOPES), "services": [rights_handler.SERVICE]}
    return [own, registration.role()]


def configure(c: Any) -> None:
    """Add to the configuration of a Hub what it needs to have sessions of Refit as its servers.

    Raises:
        RefitError: the Hub, or the settings of Refit, don't permit it.
    """
    chosen = settings()
    _check(c, chosen)
    c.JupyterHub.spawner_class = "flows.web.hub.spawner.RefitSpawner"
    c.RefitSpawner.start_timeout, c.RefitSpawner.poll_interval = START_SECONDS, POLL_SECONDS
    # A person's sessions other than the first are servers with names.
    c.JupyterHub.allow_named_servers = True
    # Sessions don't end with the Hub.
    c.JupyterHub.cleanup_servers = False
    below = (routes.BELOW, f"{routes.ENTRY}/", f"{routes.MY_SESSIONS}/")
    c.Proxy.extra_routes = {**_given(c.Proxy.extra_routes, {}), **dict.fromkeys(below, chosen.gateway_url)}
    c.JupyterHub.services = [*_given(c.JupyterHub.services, []), *services(chosen)]
    c.JupyterHub.custom_scopes = {**_given(c.JupyterHub.custom_scopes, {}), **definitions()}
    c.JupyterHub.load_roles = [*_given(c.JupyterHub.load_roles, []), *roles()]
    rights = {*SCOPES_OF_ALL, *registration.person_scopes()}
    c.JupyterHub.extra_user_scopes = {*_given(c.JupyterHub.extra_user_scopes, set()), *rights}
    own = [
        (rights_handler.PATH, rights_handler.RightsHandler),
        (rights_handler.ADMINS, rights_handler.AdminsHandler),
    ]
    c.JupyterHub.extra_handlers = [*_given(c.JupyterHub.extra_handlers, []), *own]
    _accept_once()
    c.JupyterHub.template_paths = [*_given(c.JupyterHub.template_paths, []), str(accepting.TEMPLATES)]


def _accept_once() -> None:
    """Put Refit's page of codes before the Hub's own: there a code works for everybody who has it, until it expires."""
    own = (accepting.PATH, accepting.AcceptHandler)
    if own not in default_handlers:  # extra handlers come after the Hub's
        default_handlers.insert(0, own)


def _check(c: Any, chosen: Settings) -> None:
    why = ""
    if not (chosen.hub_wanted and chosen.other_hub.api):
        why = "Refit isn't told of this Hub"
        hint = f"set `other_hub` in {chosen.home}/settings.yaml, without `hub: false`, and run `refit up`."
    elif _given(c.JupyterHub.base_url, "/") not in ("", "/"):
        why, hint = "the Hub has a `base_url` of its own", "leave `c.JupyterHub.base_url` as it is."
    elif chosen.people_host or _given(c.JupyterHub.subdomain_host, ""):
        why, hint = "hosts for each person (`subdomain_host`) need Refit's own Hub", "leave `subdomain_host` empty."
    if why:
        raise RefitError("This Hub can't have sessions of Refit as its servers.", why=why, hint=hint)


def _given(value: Any, initial: Any) -> Any:
    """The value that the operator gave to a setting so far; traitlets keep one that was only touched as a promise."""
    return value.get_value(initial) if isinstance(value, LazyConfigValue) else (value or initial)
