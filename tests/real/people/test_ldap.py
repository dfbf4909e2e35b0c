"""Logins by LDAP, by configuration alone: JupyterHub's authenticator for it, and a real LDAP server."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flows.core.settings.hub_login import By, LoginPolicy
from tests.support.hub import Person
from tests.support.ldap_server import TREE
from tests.support.people import come_in, people_alone

PASSWORD = secrets.token_hex(12)
# As docs/jupyterhub.md has it, but for TLS.
CONFIGURATION = """
c.JupyterHub.authenticator_class = "ldapauthenticator.LDAPAuthenticator"
c.LDAPAuthenticator.server_address = "127.0.0.1"
c.LDAPAuthenticator.server_port = {port}
c.LDAPAuthenticator.tls_strategy = "insecure"
c.LDAPAuthenticator.bind_dn_template = ["uid={{username}},{tree}"]
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of an LDAP server that knows Ada and Eve."""
    call = [sys.executable, "-m", "tests.support.ldap_server", PASSWORD, "ada", "eve"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield int(server.stdout.readline())
        finally:
            server.kill()


@pytest.mark.parametrize("by", [By.other, By.password])
def test_a_person_of_the_directory_comes_in_when_invited_and_nobody_else(
    port: int, by: By, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("ldap") / "home"
    file = home / "jupyterhub_config.d" / "ldap.py"
    file.parent.mkdir(parents=True)
    file.write_text(CONFIGURATION.format(port=port, tree=TREE))
    with people_alone(home, hub_login=LoginPolicy(by=by, service="the School")) as people:
        ada = Person(people.hub, "ada")
        # Not even where the settings still say that passwords are the Hub's own: a file has the last word on that.
        assert ada.log_in(PASSWORD).status_code == 403
        assert Person(people.hub, "eve").log_in(PASSWORD).status_code == 403
        if by is By.password:
            return
        assert "the login of the School" in people.hub.refit("user", "invite", "ada")
        assert ada.log_in("wrong").status_code == 403
        assert ada.log_in("").status_code == 403  # to a directory, a login without a password is anybody's
        assert ada.log_in(PASSWORD).url.path == "/hub/home"
        people.session("mine", "ada")
        come_in(ada, "mine")
        assert Person(people.hub, "ada,ou=x").log_in(PASSWORD).status_code == 403
        people.hub.refit("user", "remove", "ada", "--yes")
        assert Person(people.hub, "ada").log_in(PASSWORD).status_code == 403
    assert PASSWORD not in "".join(log.read_text(errors="replace") for log in (home / "logs").glob("*.log*"))
