"""Logins by a provider of OpenID Connect and by PAM, for real, with the Hub's tables in PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
from oidc_provider_mock import User, run_server_in_thread

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.hub_login import By, LoginPolicy
from flows.web.hub.logins import discovered
from tests.support.hub import Hub, Person
from tests.support.people import People, come_in, people_alone
from tests.support.postgresql import postgresql
from tests.support.waiting import serving

SECRET = secrets.token_hex(16)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    users = [User(sub=name, claims={"preferred_username": name}) for name in ("ada", "Bob@Example.org", "eve")]
    with run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as cluster:
        yield cluster.add_database()


@pytest.fixture(scope="module")
def people(issuer: str, database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    login = LoginPolicy(by=By.oidc, issuer=issuer, client_id="refit", service="the School")
    more = {"hub_login": login, "hub_client_secret": SECRET, "database_url": database}
    with people_alone(tmp_path_factory.mktemp("logins") / "home", **more) as people:
        yield people


def logged_in(hub: Hub, name: str) -> tuple[Person, httpx.Response]:
    """Press the Hub's button, and the provider's."""
    person = Person(hub, name)
    shown = person.client.get("/hub/login")
    assert "Sign in with the School" in shown.text
    [button] = re.findall(r"""href=['"]([^'"]*oauth_login[^'"]*)""", shown.text)
    provider = person.client.get(unescape(button))
    assert provider.url.host == "localhost" and "code_challenge=" in str(provider.url)  # PKCE
    return person, person.client.post(str(provider.url), data={"sub": name})


def test_a_person_who_was_invited_comes_in_by_the_provider_and_nobody_else(people: People) -> None:
    hub = people.hub
    told = hub.refit("user", "invite", "ada")
    assert "the School" in told and "code=" not in told
    ada, landed = logged_in(hub, "ada")
    assert landed.status_code == 200 and landed.url.path == "/hub/home"
    people.session("ada", "ada")
    come_in(ada, "ada")
    _, refused = logged_in(hub, "eve")
    assert refused.status_code == 403
    assert '"eve"' not in hub.refit("user", "list", "--json")
    hub.refit("user", "invite", "bob@example.org", "--admin")
    bob, landed = logged_in(hub, "Bob@Example.org")
    assert landed.url.path == "/hub/home" and "bob@example.org" in landed.text
    come_in(bob, "ada")
    hub.refit("user", "remove", "ada", "--yes")
    assert hub.sessions.store.find("ada")
    assert logged_in(hub, "ada")[1].status_code == 403


def test_the_hubs_tables_are_in_a_schema_of_their_own(people: People, database: str) -> None:
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT table_schema, table_name FROM information_schema.tables").fetchall()
    of = {schema: {name for other, name in rows if other == schema} for schema in ("public", "jupyterhub")}
    assert {"users", "shares", "spawners"} <= of["jupyterhub"] and {"sessions", "grants"} <= of["public"]
    assert "users" not in of["public"] and not (people.hub.settings.home / "services/hub/jupyterhub.sqlite").exists()


def test_no_secret_is_in_a_log_or_a_command_line(people: People) -> None:
    logs = "".join(file.read_text(errors="replace") for file in (people.hub.settings.home / "logs").glob("*.log*"))
    shown = "".join(str(process.info) for process in psutil.process_iter(["cmdline"]))
    assert SECRET not in logs and SECRET not in shown


class Other(BaseHTTPRequestHandler):
    """A provider that says it is another one."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        ends = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
        self.wfile.write(json.dumps({"issuer": "https://other.example", **dict.fromkeys(ends, "https://x")}).encode())


def test_a_provider_that_is_another_or_none_is_refused(issuer: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert discovered(settings, issuer).token_endpoint.startswith(issuer)
    with serving(Other) as port:
        for wrong in (f"http://127.0.0.1:{port}", f"{issuer}/users", "http://127.0.0.1:1"):
            with pytest.raises(RefitError, match="doesn't tell how people log in"):
                discovered(settings, wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"by": "oidc"}, {"by": "oidc", "issuer": "http://example.org", "client_id": "x"}, {"issuer": "https://x/"}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="issuer"):
        LoginPolicy.model_validate(wrong)


@pytest.fixture
def machine_user() -> Iterator[tuple[str, str]]:
    """A user of this machine with a password, as long as the test lasts."""
    if os.getuid():
        pytest.skip("only root makes users")
    name, password = f"refit-test-{os.getpid()}", secrets.token_hex(12)
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, check=True)
        yield name, password
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)


def test_people_of_the_machine_log_in_by_pam_when_they_are_invited(
    machine_user: tuple[str, str], people: People
) -> None:
    """With the Hub of the tests above, which is started anew with another setting."""
    name, password = machine_user
    people.hub.settings = people.hub.settings.model_copy(update={"hub_login": LoginPolicy(by=By.pam)})
    people.hub.again()
    person = Person(people.hub, name)
    assert person.log_in(password).status_code == 403
    assert "this machine" in people.hub.refit("user", "invite", name)
    assert person.log_in("wrong").status_code == 403
    assert person.log_in(password).url.path == "/hub/home"
    people.session("mine", name)
    come_in(person, "mine")
