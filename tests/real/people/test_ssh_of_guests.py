"""A share of the Hub and ssh from a laptop: it opens the way through the jump host, and its end closes what is open."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows import services
from flows.jump.sandbox import Sandbox
from flows.sessions.model import SSH_PORT
from flows.sessions.people.person_keys import PersonKeys
from tests.support.hub import SERVICES, Hub, Person
from tests.support.laptops import Laptop, greeter
from tests.support.my_sessions import api
from tests.support.people import OUT_SECONDS, People, people_alone
from tests.support.waiting import PATIENCE, free_port, free_span, running_seconds, wait_until

Ends = Callable[[Hub, Person, Person], object]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    ports = {"ssh_ports": free_span(), "jump_port": free_port(), "jump_uid": 1_200_000 + os.getpid()}
    with people_alone(tmp_path_factory.mktemp("guests") / "home", **ports) as people:
        services.up(people.hub.settings, only=(*SERVICES, "jump"))
        yield people


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda hub, lin, ben: _unshared(lin), id="by the API"),
        pytest.param(lambda hub, lin, ben: ben.api("DELETE", "/users/ben/shared/lin/papers"), id="given back"),
        pytest.param(lambda hub, lin, ben: lin.api("PATCH", "/shares/lin/papers", user="ben"), id="at the Hub"),
    ],
)
def test_a_guest_who_is_in_by_ssh_is_out_when_the_share_ends(people: People, tmp_path: Path, end: Ends) -> None:
    hub = people.hub
    if not hub.sessions.store.find("papers"):
        hub.person("lin"), hub.person("ben")
        people.session("papers", "lin")
    lin, ben = Person(hub, "lin"), Person(hub, "ben")
    lin.log_in()
    ben.log_in()
    laptop = Laptop.make(hub.settings, "ben", tmp_path / "laptop", PersonKeys(hub.sessions.store.database))
    laptop.tell_key()
    hub.refit("session", "share", "papers", "--with", "ben")
    ssh = hub.sessions.ssh
    wait_until(lambda: laptop.fingerprint in {key.fingerprint for key in ssh.people_keys("papers")})
    with greeter(9) as address:
        ssh.forwarder.point(ssh.port("papers"), f"{address}:{SSH_PORT}")
        # An sshd that shows no certificate is one to which people are led after a while.
        wait_until(lambda: address in Sandbox(hub.settings).hosts.read_text())
        laptop.configure()
        guest = laptop.open("-W", f"papers.refit:{SSH_PORT}", "jump.host.refit")
        try:
            assert guest.stdout and guest.stderr
            assert guest.stdout.readline() == f"this is {address}\n", guest.stderr.read()
            end(hub, lin, ben)
            begun = running_seconds()
            guest.wait(PATIENCE)
            assert running_seconds() - begun < OUT_SECONDS
            refused = laptop.call(*laptop.ssh.split(), "-W", f"papers.refit:{SSH_PORT}", "jump.host.refit")
            assert refused.returncode != 0 and "prohibited" in refused.stderr
            wait_until(lambda: not ssh.people_keys("papers"))
        finally:
            guest.kill()
            guest.communicate()


def _unshared(lin: Person) -> None:
    told = api(lin)("POST", "/sessions/papers/unshare", json={"kind": "person", "subject": "ben"})
    assert told.json() == {"ended": True}, told.text
