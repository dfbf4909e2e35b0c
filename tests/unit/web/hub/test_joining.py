"""The configuration of somebody's own JupyterHub: their own settings stay, and impossible ones are refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from traitlets.config import Config

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.hub_login import OtherHub
from flows.web.hub import joining

OTHER = OtherHub(api="http://127.0.0.1:8081", public="https://hub.example.org")


def configured(monkeypatch: pytest.MonkeyPatch, home: Path, c: Config, **more: Any) -> Config:
    settings = Settings(home=home, **{"hub": True, "gateway": True, "other_hub": OTHER, **more})
    monkeypatch.setattr(joining, "settings", lambda: settings)
    joining.configure(c)
    return c


@pytest.mark.parametrize("lazily", [False, True])
def test_the_settings_of_the_operator_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lazily: bool) -> None:
    c, service, role = Config(), {"name": "theirs"}, {"name": "user", "scopes": ["self", "read:hub"]}
    if lazily:
        c.JupyterHub.services.append(service)
        c.JupyterHub.load_roles.extend([role])
        c.Proxy.extra_routes.update({"/theirs/": "http://127.0.0.1:9"})
        c.JupyterHub.extra_user_scopes.add("list:groups")
    else:
        c.JupyterHub.services, c.JupyterHub.load_roles = [service], [role]
        c.Proxy.extra_routes, c.JupyterHub.extra_user_scopes = {"/theirs/": "http://127.0.0.1:9"}, {"list:groups"}
    hub, routes = configured(monkeypatch, tmp_path, c).JupyterHub, c.Proxy.extra_routes
    assert [one["name"] for one in hub.services] == ["theirs", "refit", "sessions"]
    assert hub.load_roles[0] == role and {one["name"] for one in hub.load_roles} == {"user", "refit", "sessions"}
    assert {"list:groups", "shares!user"} < hub.extra_user_scopes
    assert set(routes) == {"/theirs/", "/session/", "/authorizer/", "/services/sessions/"}
    assert {routes[one] for one in routes if one != "/theirs/"} == {"http://127.0.0.1:17900"}
    assert "authenticator_class" not in hub and "proxy_class" not in hub


@pytest.mark.parametrize(
    ("theirs", "settings", "why"),
    [
        ({}, {"other_hub": OtherHub()}, "isn't told of this Hub"),
        ({}, {"hub": False}, "isn't told of this Hub"),
        ({"base_url": "/jupyter/"}, {}, "a `base_url` of its own"),
        ({"subdomain_host": "https://hub.example.org"}, {}, "`subdomain_host`"),
        ({}, {"subdomain_host": "https://hub.example.org"}, "`subdomain_host`"),
    ],
)
def test_a_hub_that_could_not_lead_to_sessions_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, theirs: dict[str, str], settings: dict[str, Any], why: str
) -> None:
    c = Config()
    c.JupyterHub.update(theirs)
    with pytest.raises(RefitError) as refused:
        configured(monkeypatch, tmp_path, c, **settings)
    assert why in refused.value.why and refused.value.hint
    assert "spawner_class" not in c.JupyterHub


@pytest.mark.parametrize(
    "wrong",
    [
        {"api": "http://127.0.0.1:8081"},
        {"public": "https://hub.example.org"},
        {"api": "127.0.0.1:8081", "public": "https://hub.example.org"},
        {"api": "http://ada:secret@127.0.0.1", "public": "https://hub.example.org"},
        {"api": "http://127.0.0.1:8081/", "public": "https://hub.example.org/jupyter"},
    ],
)
def test_an_address_that_cannot_be_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        OtherHub.model_validate(wrong)
