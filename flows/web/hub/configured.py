"""The settings of JupyterHub that follow from Refit's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.engine import make_url

from flows.core.database import open_database, write
from flows.core.settings import Settings
from flows.gateway import routes
from flows.web.authorizer import passes
from flows.web.hub import accepting, joining, logins, registration
from flows.web.hub.spawner import settings
from flows.web.people.scopes import definitions

_SCHEMA = "jupyterhub"
_MORE = "jupyterhub_config.d"
_ROUTES_SECONDS = 30


def more() -> list[Path]:
    """The files of the operator, which have the last word."""
    return sorted((settings().home / _MORE).glob("*.py"))


def database(chosen: Settings) -> str:
    """SQLAlchemy URL of the Hub's database: a schema of its own beside Refit's tables in PostgreSQL, or a file."""
    if not (url := make_url(chosen.database)).drivername.startswith("postgres"):
        return f"sqlite:///{chosen.folder('services', 'hub') / 'jupyterhub.sqlite'}"
    url = url.set(drivername="postgresql+psycopg")
    engine = open_database(chosen.database)
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
    c.JupyterHub.template_paths = [str(accepting.TEMPLATES)]
    c.JupyterHub.proxy_class = "flows.web.hub.routing.RefitProxy"
    c.JupyterHub.spawner_class = "flows.web.hub.spawner.RefitSpawner"
    c.JupyterHub.allow_named_servers = True
    c.JupyterHub.default_url = f"{routes.HUB}/home"
    # Sessions don't end with the Hub.
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.last_activity_interval = _ROUTES_SECONDS
    c.JupyterHub.services = joining.services(chosen)
    c.JupyterHub.custom_scopes = definitions()
    c.JupyterHub.load_roles = [
        *joining.roles(),
        {"name": "user", "scopes": ["self", *joining.SCOPES_OF_ALL, *registration.person_scopes()]},
    ]
    # The Hub ends the token of a login when somebody logs out, and with it what the authorizer knows of that login.
    c.JupyterHub.oauth_token_expires_in = passes.PASS_SECONDS
    c.Spawner.start_timeout = joining.START_SECONDS
    c.Spawner.poll_interval = joining.POLL_SECONDS
    logins.configure(c, chosen)
