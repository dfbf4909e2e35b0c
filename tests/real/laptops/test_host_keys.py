"""Host certificates: a session that was made after the script was run is known at its first connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from flows.core.programs import command
from flows.jump.certificates import HELD_SECONDS
from flows.migrations.executor import MoveExecutor
from flows.sessions.ssh.host_certificates import CERTIFICATE
from flows.sessions.ssh.keys import read_keys
from tests.support.laptops import Laptop, hear
from tests.support.moving import to
from tests.support.office import PEOPLE, Office
from tests.support.variants import LIGHT
from tests.support.waiting import wait_until

# How often a session is made that is to be known at once. Where this machine gets nothing done for longer than people
# are kept waiting, they are led to one that shows no certificate yet.
TRIES = 3


def forget_sessions(laptop: Laptop) -> None:
    """Leave in `known_hosts` the jump host and the authority: all that a laptop has of sessions that come later."""
    file = laptop.folder / ".ssh" / "refit" / "known_hosts"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("[")))
    assert file.read_text().count("@cert-authority ") == 1


def first_answer(laptop: Laptop, session: str) -> str:
    """The answer of a session once it lets the laptop in, or the words of an ssh that refused its host key before."""

    said = [""]

    def answers() -> bool:
        done = laptop.run(session, "echo $REFIT_SESSION")
        said.append(done.stderr if "verification failed" in done.stderr else done.stdout.strip())
        return bool(said[-1])

    wait_until(answers)
    return said[-1]


@contextmanager
def made_later(office: Office, laptop: Laptop, session: str) -> Iterator[None]:
    """A session of Ada's that is made after her laptop got its files."""
    forget_sessions(laptop)
    office.sessions.create(session, "light-minimal-deb12-py311", "2026a", office.images[0], LIGHT, owner="ada")
    try:
        hear(office.settings, PEOPLE, (), ("ada", "bob", session))
        yield
    finally:
        office.sessions.remove(session, purge=True)


def test_a_session_that_is_made_later_is_known_at_its_first_connection(office: Office, ada: Laptop) -> None:
    for number in range(TRIES):
        session = f"ada-later-{number}"
        began = monotonic()
        with made_later(office, ada, session):
            if (said := first_answer(ada, session)) == session:
                break
            assert monotonic() - began >= HELD_SECONDS, said  # sooner nobody is led to one without a certificate
    assert said == session


@pytest.mark.long  # where all cores are busy, the certificate may come after the seconds for which logins wait
def test_it_is_known_in_its_next_container_too_and_logins_meanwhile_wait(office: Office, ada: Laptop) -> None:
    forget_sessions(ada)
    wait_until(lambda: first_answer(ada, "ada") == "ada")
    session = office.sessions.store.session("ada")
    other = next(image for image in office.images if image != session.image)
    move, over = replace(to(office.sessions, "ada", other), forced=True), Event()

    def come_again_and_again() -> list[str]:
        said = []
        while not over.is_set() or not said:
            said.append(ada.run("ada", "echo $REFIT_SESSION"))
        return [one.stderr for one in said if one.stdout != "ada\n"]

    with ThreadPoolExecutor() as several:
        problems = several.submit(come_again_and_again)
        try:
            moved = MoveExecutor.open(office.settings).carry_out(move)
        finally:
            over.set()
    assert moved.moved, moved.reason
    # One may have been on its way in when the container ended; nobody was told that there is no such session.
    assert not [said for said in problems.result() if "open failed" in said or "verification failed" in said]
    said = ada.run("ada", "echo $REFIT_SESSION")
    assert said.stdout == "ada\n", said.stderr


def test_the_certificate_of_another_session_or_authority_is_refused(office: Office, ada: Laptop) -> None:
    forget_sessions(ada)
    wait_until(lambda: first_answer(ada, "ada") == "ada")
    office.laptop("bob")  # by which his session gets a host key
    adas, bobs = (office.sessions.ssh.folder(name) for name in ("ada", "bob"))
    wait_until((bobs / CERTIFICATE).exists)
    kept = {name: (adas / name).read_bytes() for name in ("host_key", "host_key.pub", CERTIFICATE)}
    owner = office.sessions.store.session("ada").uid
    try:  # somebody has copied the key of another session, and shows it here
        for name in kept:
            _put(adas / name, (bobs / name).read_bytes(), owner if name == "host_key" else 0)
        refused = ada.run("ada", "true")
        assert refused.returncode != 0 and "verification failed" in refused.stderr
    finally:
        for name, content in kept.items():
            _put(adas / name, content, owner if name == "host_key" else 0)
    assert first_answer(ada, "ada") == "ada"
    known_hosts = ada.folder / ".ssh" / "refit" / "known_hosts"
    authority = office.sessions.ssh.certificates.authority().body
    known_hosts.write_text(
        known_hosts.read_text().replace(authority, read_keys(kept["host_key.pub"].decode(), "ada")[0].body)
    )
    refused = ada.run("ada", "true")
    assert refused.returncode != 0 and "verification failed" in refused.stderr


def _put(path: Path, content: bytes, owner: int) -> None:
    mode = "0400" if owner else "0644"
    call: list[str | Path] = ["install", "-m", mode, "-o", str(owner), "-g", "0", "/dev/stdin", path]
    command.run(call, root=True, stdin=content.decode())
