"""How people log in to the Hub, and which Hub that is: `hub_login:` and `other_hub:` in settings.yaml."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from flows.core.documents import Document

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class By(StrEnum):
    """The part of JupyterHub that knows people."""

    password = "password"
    pam = "pam"
    oidc = "oidc"
    other = "other"


class LoginPolicy(Document):
    """`hub_login:` in settings.yaml. Whichever it is, nobody has an account without an invitation."""

    by: By = Field(
        By.password,
        description="`password`: chosen by invited people; `pam`: this machine's; `oidc`: a provider's; "
        "`other`: whichever authenticator `jupyterhub_config.d` names, such as LDAP's.",
    )
    issuer: str = Field(
        "",
        pattern=r"^(|https?://[^\s@?#]*[^\s@?#/])$",
        description="URL of the provider (OpenID Connect), without a slash behind it; https, unless it is on loopback.",
    )
    client_id: str = Field("", description="Name of the Hub at that provider; its secret is `hub_client_secret`.")
    name_claim: str = Field("preferred_username", min_length=1, description="The provider's claim that names a person.")
    service: str = Field("your organization", min_length=1, max_length=80, description="Its name on the button.")

    @model_validator(mode="after")
    def _is_whole(self) -> LoginPolicy:
        if self.by is By.oidc and not (self.issuer and self.client_id):
            raise ValueError("`by: oidc` needs `issuer` and `client_id`")
        url = urlsplit(self.issuer)
        if url.scheme == "http" and url.hostname not in _LOOPBACK:
            raise ValueError("`issuer` is asked by https: its answers decide who somebody is")
        return self


class OtherHub(Document):
    """`other_hub:` in settings.yaml: a JupyterHub that Refit doesn't start, whose proxy leads to the gateway."""

    api: str = Field(
        "",
        pattern=r"^(|https?://[^\s@/?#]+)$",
        description="Where this machine reaches the Hub (its `hub_bind_url`), without a path: http://127.0.0.1:8081. "
        "Empty: `refit up` starts a Hub.",
    )
    public: str = Field(
        "",
        pattern=r"^(|https?://[^\s@/?#]+)$",
        description="Where browsers reach that Hub's proxy, without a path: https://hub.example.org.",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> OtherHub:
        if bool(self.api) != bool(self.public):
            raise ValueError("`api` and `public` are needed, or neither")
        return self
