"""A login from a person's own machine: approved on a page, kept there as theirs alone, and good for the API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.hub import Hub, Person
from tests.support.my_sessions import BASE, refit
from tests.support.waiting import PATIENCE, PATIENTLY


def asked(hub: Hub) -> dict[str, Any]:
    """A program that asks to be let in."""
    url = f"{hub.settings.gateway_url}{BASE}/device_authorization"
    return dict(httpx.post(url, data={"client_id": "<b>laptop</b>"}, **PATIENTLY).json())


def token(hub: Hub, begun: dict[str, Any]) -> dict[str, Any]:
    url = f"{hub.settings.gateway_url}{BASE}/token"
    return dict(httpx.post(url, data={"device_code": begun["device_code"]}, **PATIENTLY).json())


def answer(person: Person, begun: dict[str, Any], said: str) -> httpx.Response:
    page = person.client.get(begun["verification_uri_complete"])
    assert begun["user_code"] in page.text and "<b>laptop</b>" not in page.text
    [key] = re.findall(r'name="form" value="([^"]*)"', page.text)
    return person.client.post(f"{BASE}/device", data={"form": key, "code": begun["user_code"], "answer": said})


def test_a_program_is_let_in_once_by_a_person_who_approves_its_code(hub: Hub, ada: Person) -> None:
    begun = asked(hub)
    assert token(hub, begun) == {"error": "authorization_pending"}
    assert answer(ada, begun, "approve").status_code == 200
    assert ada.client.get(begun["verification_uri_complete"]).status_code == 404  # a code is answered once
    scopes = token(hub, begun)["scope"].split()
    assert "custom:refit:read" in scopes and "custom:refit:operate" not in scopes
    assert token(hub, begun) == {"error": "expired_token"}
    refused = asked(hub)
    assert answer(ada, refused, "deny").status_code == 200
    assert token(hub, refused) == {"error": "access_denied"}
    assert token(hub, {"device_code": "x"}) == {"error": "expired_token"}
    assert ada.client.post(f"{BASE}/device", data={"form": "x", "code": "y"}).status_code == 422


def test_a_program_gets_the_rights_of_operators_only_if_it_asks_and_its_person_is_told(hub: Hub, ada: Person) -> None:
    url = f"{hub.settings.gateway_url}{BASE}/device_authorization"
    scope = {"client_id": "desk", "scope": "custom:refit:operate custom:refit:everything"}
    begun = dict(httpx.post(url, data=scope, **PATIENTLY).json())
    assert "steer rollouts" in ada.client.get(begun["verification_uri_complete"]).text
    answer(ada, begun, "approve")
    given = token(hub, begun)
    assert "custom:refit:operate" in given["scope"].split() and "everything" not in given["scope"]
    headers = {"Authorization": f"Bearer {given['access_token']}"}
    asked_for = httpx.get(f"{hub.settings.gateway_url}{BASE}/api/overview", headers=headers, **PATIENTLY)
    assert asked_for.json()["code"] == "not-yours"  # she doesn't administer the Hub


def test_refit_logs_in_from_a_laptop_and_its_token_is_its_persons_alone(hub: Hub, ada: Person, tmp_path: Path) -> None:
    assert "You aren't logged in anywhere." in refit(tmp_path, "mine", "list").stderr
    assert "use TLS" in refit(tmp_path, "login", "http://refit.example.org").stderr
    argv = [sys.executable, "-u", "-m", "flows.cli.main", "login", hub.settings.gateway_url]
    surroundings = {"XDG_CONFIG_HOME": str(tmp_path), "PATH": "/bin", "COLUMNS": "300"}
    with subprocess.Popen(argv, env=surroundings, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        link = next(match for line in program.stdout if (match := re.search(r"http\S+code=\S+", line)))[0]
        page = ada.client.get(link)
        [key] = re.findall(r'name="form" value="([^"]*)"', page.text)
        code = link.partition("code=")[2]
        ada.client.post(f"{BASE}/device", data={"form": key, "code": code, "answer": "approve"})
        assert program.wait(PATIENCE) == 0
    kept = tmp_path / "refit" / "login.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    listed = json.loads(refit(tmp_path, "mine", "list", "--json").stdout)
    assert "ada" in [one["name"] for one in listed]
    assert "You have no session 'eve'." in refit(tmp_path, "mine", "show", "eve").stderr
