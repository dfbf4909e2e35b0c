"""The authenticator of the Hub, by the settings. Accounts are made by invitation, whichever it is."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from flows.core import outside
from flows.core.authorities import authorities
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.hub_login import By, LoginPolicy
from flows.gateway import routes
from flows.web.hub import accounts

_DISCOVERY = "/.well-known/openid-configuration"
_BOUNDS = outside.Bounds(size=1 << 20, seconds=30.0)
_CLASSES = {
    By.password: "flows.web.hub.accounts.InvitedAuthenticator",
    By.pam: "jupyterhub.auth.PAMAuthenticator",
    By.oidc: "oauthenticator.generic.GenericOAuthenticator",
}


class Provider(BaseModel):
    """The metadata of a provider of OpenID Connect, as far as it is needed."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str


def configure(c: Any, chosen: Settings) -> None:
    """Fill the part of JupyterHub's configuration that is about logins.

    Raises:
        RefitError: the provider of OpenID Connect doesn't tell where it is asked.
    """
    policy = chosen.hub_login
    if policy.by in _CLASSES:
        c.JupyterHub.authenticator_class = _CLASSES[policy.by]
    # Accounts are made by invitation, so each person who has one may come in; nobody else may, whichever authenticator
    # the operator's own files choose.
    c.Authenticator.allow_existing_users = True
    if policy.by is By.password:
        _own_passwords(c, str(accounts.folder(chosen)))
    elif policy.by is By.pam:
        # Sessions of Refit run as users of their own, not as the machine's.
        c.PAMAuthenticator.open_sessions = False
    elif policy.by is By.oidc:
        _openid_connect(c, chosen, policy)


def _own_passwords(c: Any, invitations: str) -> None:
    c.InvitedAuthenticator.invitations = invitations
    c.InvitedAuthenticator.allow_all = True  # it knows nobody who wasn't invited
    c.NativeAuthenticator.enable_signup = False
    c.NativeAuthenticator.open_signup = False
    c.NativeAuthenticator.minimum_password_length = accounts.SHORTEST_PASSWORD
    c.NativeAuthenticator.allowed_failed_logins = 5
    c.NativeAuthenticator.seconds_before_next_try = 60


def _openid_connect(c: Any, chosen: Settings, policy: LoginPolicy) -> None:
    provider = discovered(chosen, policy.issuer)
    c.GenericOAuthenticator.authorize_url = provider.authorization_endpoint
    c.GenericOAuthenticator.token_url = provider.token_endpoint
    c.GenericOAuthenticator.userdata_url = provider.userinfo_endpoint
    c.GenericOAuthenticator.client_id = policy.client_id
    c.GenericOAuthenticator.client_secret = chosen.hub_client_secret.get_secret_value()
    c.GenericOAuthenticator.oauth_callback_url = f"{chosen.public_url}{routes.HUB}/oauth_callback"
    c.GenericOAuthenticator.username_claim = policy.name_claim
    c.GenericOAuthenticator.login_service = policy.service
    c.GenericOAuthenticator.scope = ["openid", "profile", "email"]
    c.GenericOAuthenticator.enable_pkce = True


def discovered(settings: Settings, issuer: str) -> Provider:
    """Where a provider is asked, by its own word.

    Raises:
        RefitError: it doesn't answer as a provider does.
    """
    try:
        with outside.Client(authorities(settings), at_once=1) as client:
            answer = client.exchange("GET", f"{issuer}{_DISCOVERY}", _BOUNDS)
        provider = Provider.model_validate_json(answer.content)
        if provider.issuer.rstrip("/") != issuer:
            raise ValueError(f"it calls itself {provider.issuer!r}")
    except (httpx.RequestError, httpx.InvalidURL, ValidationError, ValueError) as error:
        raise RefitError(
            f"{issuer} doesn't tell how people log in there.",
            why=str(error).splitlines()[0],
            hint="check `hub_login.issuer` in settings.yaml, and whether this machine reaches it.",
        ) from None
    return provider
