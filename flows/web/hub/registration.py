"""The page of people's own sessions in the Hub's configuration: a service with a login, scopes and rights of its
own."""

from __future__ import annotations

from typing import Any

from flows.core.atomic_files import kept_secret
from flows.core.programs import program_output
from flows.core.settings import Settings
from flows.gateway import routes
from flows.web.people.scopes import Scope

NAME = "sessions"
CLIENT = f"service-{NAME}"
CALLBACK = f"{routes.MY_SESSIONS}/oauth_callback"
# It looks up who administers the Hub, and makes tokens for programs of people who have agreed to that.
_RIGHTS = ("list:users", "read:users", "tokens")


def secret(settings: Settings) -> str:
    """With which the service itself asks the Hub; only the owner of the home can read it."""
    token = kept_secret(settings.folder("services", "my-sessions") / "token")
    program_output.protect(token)
    return token


def service(settings: Settings) -> dict[str, Any]:
    """The service, as JupyterHub wants it in `services`. A login there permits what a person may do here."""
    login = {"oauth_client_id": CLIENT, "oauth_redirect_uri": CALLBACK, "oauth_no_confirm": True}
    return {"name": NAME, "api_token": secret(settings), **login, "oauth_client_allowed_scopes": person_scopes()}


def role() -> dict[str, Any]:
    """The rights of the service at the Hub."""
    return {"name": NAME, "scopes": list(_RIGHTS), "services": [NAME]}


def person_scopes() -> list[str]:
    """The scopes that each person has here, and can give to tokens."""
    return [f"access:services!service={NAME}", *(scope.value for scope in Scope)]
