"""The sshd of a session's slots: what its Secret has, whom it tells, and what is refused before anything happens."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings, SessionEngine
from flows.sessions.engine import Engine
from flows.sessions.kubernetes import manifests, ssh_mounts, sshd
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ProgramEnded
from flows.sessions.kubernetes.isolation import Isolation
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.records import SessionPod, Slot
from flows.sessions.kubernetes.refusals import ClusterAway
from flows.sessions.kubernetes.slots import Slots
from flows.sessions.kubernetes.sshd import SlotSshd
from flows.sessions.model import Session
from flows.sessions.ssh.keys import read_keys
from flows.sessions.ssh.session_access import Ssh
from tests.support.pods import OPTIONS, SESSION
from tests.support.waiting import PATIENCE, free_span

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy ada@home"
OUTSIDE = replace(OPTIONS, gateways=("192.0.2.0/28",))


class Server:
    """An API server with one Secret and one Pod, in whose slot `a` the session runs."""

    def __init__(self, folder: Path, options: manifests.ClusterOptions = OUTSIDE) -> None:
        self.options, self._folder = options, folder
        self.secret: dict[str, str] = {"token": "dG9rZW4="}
        self.calls: list[tuple[str, ...]] = []
        self.told: list[Mapping[str, str | None]] = []
        self.policies, self.code = 0, 0
        self.ssh: str | None = ""
        self.away, self.over, self.stdin, self.said = False, False, b"", b"3\n"
        running, sleeping = (Slot(name, number, opened=number) for name, number in (("a", 2), ("b", 0)))
        self.slots = (running, sleeping)

    @property
    def sshd(self) -> SlotSshd:
        placement, isolation = SimpleNamespace(pods=self.pods), SimpleNamespace(ensure=self.ensure)
        slots = SimpleNamespace(call=self.call, annotate=self.annotate)
        return SlotSshd(
            cast("Cluster", self),
            cast("Placement", placement),
            cast("Slots", slots),
            cast("Isolation", isolation),
            lambda session: self._folder / session / "ssh",
        )

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        assert (resource, name) == ("secrets", "refit-token-ada")
        if not self.secret:
            return None
        return {"data": dict(self.secret)}

    def patch(self, resource: str, name: str, change: Mapping[str, Any], kind: str) -> None:
        assert (resource, name, kind) == ("secrets", "refit-token-ada", "merge")
        for key, value in change["data"].items():
            self.secret.pop(key, None)
            self.secret |= {} if value is None else {key: value}

    def pods(self, session: str) -> tuple[SessionPod, ...]:
        if session != "ada":
            return ()
        here = SessionPod(
            "refit-ada-1", "ada", "7", "", "", "n1", "10.0.0.9", ending=False, over=False, slots=self.slots
        )
        here = replace(here, ssh=self.ssh, over=self.over)
        return here, replace(here, name="refit-ada-0", address="10.0.0.8", ending=True)

    def ensure(self) -> None:
        self.policies += 1

    def call(self, pod: str, slot: str, *words: str, limit: float, stdin: bytes = b"") -> bytes:
        self.calls.append((pod, slot, *words))
        self.stdin = stdin
        if self.code:
            raise ProgramEnded("It doesn't.", why="", code=self.code)
        return self.said if words[0] == "hang-up" else b""

    def annotate(self, pod: str, annotations: Mapping[str, str | None]) -> None:
        assert pod == "refit-ada-1"
        if self.away:
            raise ClusterAway("It is away.")
        self.told.append(annotations)
        self.ssh = annotations[ssh_mounts.TOLD]


@pytest.fixture(autouse=True)
def unreached(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Address → why this machine doesn't reach it."""
    unreached: dict[str, str] = {}
    monkeypatch.setattr(sshd, "why_unreached", lambda address, *_: unreached.get(address, ""))
    return unreached


@pytest.fixture
def session() -> Session:
    return replace(SESSION, generation=2)


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """The folder with what each session has on Refit's machine."""
    return tmp_path / "refit" / "sessions"


def bring(sessions: Path, **files: str) -> None:
    folder = sessions / "ada" / "ssh"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_the_files_come_into_the_secret_and_kubelet_is_told_of_them_once(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    server.sshd.provide(session)
    assert not server.told and not server.calls and server.policies == 0
    bring(sessions, authorized_keys=KEY, host_key="private", probe="probe")
    server.sshd.provide(session)
    has = {key: base64.b64decode(value).decode() for key, value in server.secret.items()}
    version = has.pop(ssh_mounts.VERSION)
    assert has == {"token": "token", "authorized_keys": KEY, "host_key": "private", "probe": "probe"}
    assert server.told == [{ssh_mounts.TOLD: version}] and server.policies == 1
    assert server.calls == [("refit-ada-1", "a", "keys", version, "2", "0")]
    server.sshd.provide(session, wait=0)
    assert len(server.told) == len(server.calls) == 1
    server.sshd.provide(session)
    assert server.told == [{ssh_mounts.TOLD: version}]
    assert server.calls == [("refit-ada-1", "a", "keys", version, "2", "0")] * 2


def test_a_key_that_goes_is_another_version_and_the_token_stays(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    bring(sessions, authorized_keys=KEY, host_key="private")
    server.sshd.provide(session)
    before = server.secret[ssh_mounts.VERSION]
    bring(sessions, authorized_keys="")
    (sessions / "ada/ssh" / "host_key").unlink()
    server.sshd.provide(session)
    assert server.secret.keys() == {"token", "authorized_keys", ssh_mounts.VERSION}
    assert server.secret["authorized_keys"] == "" and server.secret[ssh_mounts.VERSION] != before


def test_a_version_says_nothing_of_the_private_key(session: Session, sessions: Path) -> None:
    versions = set[str]()
    for private in ("one", "two"):
        server = Server(sessions)
        bring(sessions, authorized_keys=KEY, host_key=private)
        server.sshd.provide(session)
        versions.add(server.secret[ssh_mounts.VERSION])
    assert len(versions) == 1


def test_it_begins_where_the_session_runs_and_not_where_its_home_is_awaited(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    bring(sessions, authorized_keys=KEY)
    server.sshd.start(session)
    assert [(*call[:3], *call[4:]) for call in server.calls] == [("refit-ada-1", "a", "sshd", "2", "0")]
    server.calls.clear()
    server.sshd.start(replace(session, generation=1))
    assert server.calls == []
    assert server.sshd.end_logins(session, ()) == 3
    server.slots = (server.slots[1], replace(server.slots[0], late=True))
    server.calls.clear()
    server.sshd.start(session)
    assert server.calls == [] and server.sshd.end_logins(session, ()) == 0


@pytest.mark.parametrize(("code", "why"), [(69, "has no sshd"), (64, "knew no ssh")])
def test_an_image_or_a_pod_that_lets_nobody_in_is_told(session: Session, code: int, why: str, sessions: Path) -> None:
    server = Server(sessions)
    server.code = code
    bring(sessions, authorized_keys=KEY)
    with pytest.raises(RefitError, match="Nobody can come into the session 'ada' by ssh") as refused:
        server.sshd.start(session)
    assert why in refused.value.why


def test_a_pod_that_this_machine_does_not_reach_is_told_with_what_would_help(
    session: Session, unreached: dict[str, str], sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(sessions)
    unreached["10.0.0.9"] = "No route to host"
    monkeypatch.setattr(sshd, "_REACHED_SECONDS", 0.1)
    bring(sessions, authorized_keys=KEY)
    with pytest.raises(RefitError, match="doesn't reach the sshd of the session 'ada'") as refused:
        server.sshd.start(session)
    assert "10.0.0.9 port 2222" in refused.value.why and "No route to host" in refused.value.why
    assert "kubernetes.gateway_addresses" in refused.value.hint


def test_a_pod_that_answers_late_is_reached(session: Session, sessions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, tries = Server(sessions), list[str]()

    def answers_late(address: str, *_: object) -> str:
        tries.append(address)
        return "it doesn't answer in time" if len(tries) < 3 else ""

    monkeypatch.setattr(sshd, "why_unreached", answers_late)
    monkeypatch.setattr(sshd, "_REACHED_SECONDS", PATIENCE)
    bring(sessions, authorized_keys=KEY)
    server.sshd.start(session)
    assert tries == ["10.0.0.9"] * 3 and len(server.calls) == 1


def test_connections_that_refit_knows_by_their_ends_are_kept(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    assert server.sshd.end_logins(session, (), {("10.99.0.1", 40000), ("fd00::1", 40001)}) == 3
    assert server.stdin == (
        b" 0100630A:9C40  0000000000000000FFFF00000100630A:9C40  000000FD000000000000000001000000:9C41 "
    )


@pytest.mark.parametrize("said", [b"", b"many\n", b"3\n4\n", b"9" * 5000, b"\xff"])
def test_an_answer_into_which_the_session_has_written_counts_nobody(
    session: Session, said: bytes, sessions: Path
) -> None:
    server = Server(sessions)
    server.said = said
    assert server.sshd.end_logins(session, ()) == 0


def test_an_address_is_a_sessions_as_long_as_its_pod_has_it(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    led = {"ada": "10.0.0.9", "bob": "10.0.0.9"}
    assert server.sshd.outdated(led) == {"bob"}
    assert server.sshd.outdated({"ada": "10.0.0.8"}) == frozenset(), "its Pod ends, and has it until then"
    assert server.sshd.outdated({"ada": "10.0.0.7"}) == {"ada"}
    server.over = True
    assert server.sshd.outdated(led) == {"ada", "bob"}


def test_another_failure_stays_what_it_is(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    server.code = 75
    bring(sessions, authorized_keys=KEY)
    with pytest.raises(ProgramEnded):
        server.sshd.start(session)


def test_keys_that_kubelet_has_not_brought_are_awaited_again_by_whoever_repeats_it(
    session: Session, sessions: Path
) -> None:
    server = Server(sessions)
    bring(sessions, authorized_keys=KEY)
    server.code = 75
    for _ in range(2):
        with pytest.raises(ProgramEnded):
            server.sshd.provide(session)
    assert len(server.told) == 1 and len(server.calls) == 2
    server.code = 0
    server.sshd.provide(session)
    assert [call[2] for call in server.calls] == ["keys"] * 3


def test_kubelet_is_told_by_whoever_comes_after_one_that_wrote_the_secret_alone(
    session: Session, sessions: Path
) -> None:
    server = Server(sessions)
    bring(sessions, authorized_keys=KEY)
    server.away = True
    with pytest.raises(ClusterAway):
        server.sshd.provide(session)
    assert ssh_mounts.VERSION in server.secret and not server.told
    server.away = False
    server.sshd.provide(session, wait=0)
    assert [*server.told[0]] == [ssh_mounts.TOLD] and not server.calls


def test_files_of_which_kubelet_was_not_told_are_known(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    assert server.sshd.is_told(session), "it has had no key yet"
    bring(sessions, authorized_keys=KEY)
    assert not server.sshd.is_told(session)
    server.sshd.provide(session, wait=0)
    assert server.sshd.is_told(session)
    bring(sessions, authorized_keys="")
    assert not server.sshd.is_told(session), "a key went, and Refit was killed before the session heard of that"
    server.over = True
    assert server.sshd.is_told(session), "its next Pod reads what is there then"
    server.over, server.ssh = False, None
    assert server.sshd.is_told(session), "a Pod of before has no keys"


def test_a_pod_of_before_is_known_before_anything_is_written_and_its_session_moves(
    session: Session, sessions: Path
) -> None:
    server = Server(sessions)
    server.ssh = None
    with pytest.raises(RefitError, match="Nobody can come into") as refused:
        server.sshd.check(session)
    assert "knew no ssh" in refused.value.why and "another Pod" in refused.value.hint
    bring(sessions, authorized_keys=KEY)
    server.sshd.provide(session)
    assert not server.told and not server.calls


def test_keys_are_not_brought_where_others_could_try_theirs(session: Session, sessions: Path) -> None:
    server = Server(sessions, OPTIONS)
    bring(sessions, authorized_keys=KEY)
    with pytest.raises(RefitError, match="Nobody is let into sessions") as refused:
        server.sshd.provide(session)
    assert "ssh-keys ada" in refused.value.hint and server.secret.keys() == {"token"}
    bring(sessions, authorized_keys="")
    server.sshd.provide(session)


def test_a_session_whose_secret_is_gone_is_told_so(session: Session, sessions: Path) -> None:
    server = Server(sessions)
    server.secret.clear()
    bring(sessions, authorized_keys=KEY)
    with pytest.raises(ClusterError, match="can't be brought") as refused:
        server.sshd.provide(session)
    assert "refit-token-ada" in refused.value.why and "session start ada" in refused.value.hint


def test_a_file_that_cannot_be_read_is_named(session: Session, sessions: Path) -> None:
    bring(sessions, authorized_keys=KEY)
    (sessions / "ada/ssh" / "host_key").mkdir()
    with pytest.raises(RefitError, match="can't be read") as refused:
        Server(sessions).sshd.provide(session)
    assert "host_key" in refused.value.why


def test_keys_that_are_refused_change_nothing(session: Session, tmp_path: Path, sessions: Path) -> None:
    cluster = ClusterSettings(namespace="refit")
    settings = Settings(
        home=tmp_path / "refit", engine=SessionEngine.kubernetes, kubernetes=cluster, ssh_ports=free_span()
    )
    ssh = Ssh(settings, cast("Engine", SimpleNamespace(sshd=Server(sessions, OPTIONS).sshd)))
    with pytest.raises(RefitError, match="by ssh") as refused:
        ssh.authorize(session, read_keys(KEY, "mine"))
    assert "gateway_addresses" in refused.value.hint
    assert ssh.keys("ada") == () and not (sessions / "ada/ssh").exists()
    ssh.authorize(session, ())


def test_keys_are_refits_own_files_and_come_into_the_secret(session: Session, tmp_path: Path, sessions: Path) -> None:
    cluster = ClusterSettings(namespace="refit")
    settings = Settings(
        home=tmp_path / "refit", engine=SessionEngine.kubernetes, kubernetes=cluster, ssh_ports=free_span()
    )
    server = Server(sessions)
    ssh = Ssh(settings, cast("Engine", SimpleNamespace(sshd=server.sshd)))
    ssh.authorize(session, read_keys(KEY, "mine"))
    assert {*ssh_mounts.FILES, ssh_mounts.VERSION, "token"} == server.secret.keys()
    assert (sessions / "ada/ssh" / "host_key").stat().st_mode & 0o777 == 0o400
    ssh.authorize(session, ())
    assert server.secret["authorized_keys"] == "" and len(server.told) == 2
