"""The settings of JupyterHub that follow from Refit's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.engine import make_url

from flows.core.database import write
from flows.core.settings import Settings
from flows.gateway import routes
from flows.web.hub import client, logins, passes, registration
from flows.web.hub.admission import CALLBACK
from flows.web.hub.rights_handler import SERVICE
from flows.web.hub.scopes import definitions
from flows.web.hub.spawner import settings

_SCHEMA = "jupyterhub"
# Rights of Refit itself at the Hub: list people, invite and remove them, share, and tell of sessions that run.
_SCOPES = ("admin:users", "admin:servers", "delete:users", "proxy", "shares", "read:groups")
# By the second right the Hub tells the authorizer who they are. With the others people share their own sessions with
# those, and with groups, whose names they know; nobody lists names.
_SCOPES_OF_ALL = ("self", f"access:services!service={SERVICE}", "shares!user", "read:users:name", "read:groups:name")
_MORE = "jupyterhub_config.d"
# Seconds. A first start pulls the image.
_START_SECONDS, _ROUTES_SECONDS, _POLL_SECONDS = 1800, 30, 15


def more() -> list[Path]:
    """The files of the operator, which have the last word."""
    return sorted((settings().home / _MORE).glob("*.py"))


def database(chosen: Settings) -> str:
    """SQLAlchemy URL of the Hub's database: a schema of its own beside Refit's tables in PostgreSQL, or a file."""
    if not (url := make_url(chosen.database)).drivername.startswith("postgres"):
        return f"sqlite:///{chosen.folder('services', 'hub') / 'jupyterhub.sqlite'}"
    url = url.set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(url)
    write(engine, lambda connection: connection.execute(sqlalchemy.text(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")))
    engine.dispose()
    return url.update_query_dict({"options": f"-csearch_path={_SCHEMA}"}).render_as_string(hide_password=False)


def configure(c: Any) -> None:
    """Fill a configuration of JupyterHub."""
    chosen = settings()
    folder = chosen.folder("services", "hub")
    c.JupyterHub.bind_url = f"{chosen.gateway_url}/"
    c.JupyterHub.hub_bind_url = chosen.hub_url
    c.JupyterHub.hub_routespec = f"{routes.HUB}/"
    c.JupyterHub.db_url = database(chosen)
    c.JupyterHub.upgrade_db = True
    c.JupyterHub.cookie_secret_file = str(folder / "cookie_secret")
    c.JupyterHub.template_paths = [str(Path(__file__).parent / "templates")]
    c.JupyterHub.proxy_class = "flows.web.hub.routing.RefitProxy"
    c.JupyterHub.spawner_class = "flows.web.hub.spawner.RefitSpawner"
    c.JupyterHub.allow_named_servers = True
    c.JupyterHub.default_url = f"{routes.HUB}/home"
    # Sessions don't end with the Hub.
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.last_activity_interval = _ROUTES_SECONDS
    authorizer = {"oauth_client_id": client.OAUTH_CLIENT, "oauth_redirect_uri": CALLBACK, "oauth_no_confirm": True}
    own = {"name": SERVICE, "api_token": client.token(chosen), **authorizer}
    c.JupyterHub.services = [own, registration.service(chosen)]
    c.JupyterHub.custom_scopes = definitions()
    c.JupyterHub.load_roles = [
        {"name": SERVICE, "scopes": list(_SCOPES), "services": [SERVICE]},
        registration.role(),
        {"name": "user", "scopes": [*_SCOPES_OF_ALL, *registration.person_scopes()]},
    ]
    # The Hub ends the token of a login when somebody logs out, and with it what the authorizer knows of that login.
    c.JupyterHub.oauth_token_expires_in = passes.PASS_SECONDS
    c.Spawner.start_timeout = _START_SECONDS
    c.Spawner.poll_interval = _POLL_SECONDS
    logins.configure(c, chosen)
