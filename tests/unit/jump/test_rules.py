"""The rules of the jump host: what a key is good for, when a connection ends, and which keys a session gets."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError, UnknownName
from flows.jump import client_files, rules
from flows.jump.rules import End, Login
from flows.jump.session_authorized_keys import keys_of_sessions
from flows.sessions.people.entitlements import Access, Account, Entitlements, Kind, Rights, Role, Share
from flows.sessions.people.person_keys import MOST_KEYS, KeyTaken, PersonKey, PersonKeys
from flows.sessions.ssh import client
from flows.sessions.ssh.client import JumpHost
from tests.support.person_keys import ADAS, BOBS, key

AT = datetime(2026, 11, 25, tzinfo=UTC)
LOGIN = Login("ada", ADAS.fingerprint, frozenset({"ada", "shared"}))
PLACES = {"ada": "10.1.0.2", "shared": "10.1.0.3", "other": "10.1.0.4"}


def test_a_key_leads_to_the_sessions_named_and_without_any_to_none() -> None:
    line = rules.line(ADAS, ["ada", "notes"])
    assert line.startswith(
        'restrict,port-forwarding,permitopen="ada.refit:2222",permitopen="notes.refit:2222" ssh-ed25'
    )
    assert "laptop" not in line  # a comment is what somebody typed
    assert rules.line(ADAS, []) == f"restrict ssh-ed25519 {ADAS.body}\n"


def test_ones_own_sessions_come_first_where_there_are_more_than_openssh_takes() -> None:
    many = {f"s{number}": Access(Role.admin) for number in range(rules.MOST_SESSIONS)} | {"zoe": Access(Role.owner)}
    told = rules.chosen(many)
    assert told[0] == "zoe" and len(told) == rules.MOST_SESSIONS


@pytest.mark.parametrize(
    ("owner", "usable", "targets", "why"),
    [
        ("ada", {"ada", "shared"}, {"10.1.0.2"}, None),
        ("ada", {"ada", "shared"}, set(), None),
        ("", {"ada", "shared"}, set(), End.key_removed),
        ("bob", {"ada", "shared"}, set(), End.key_removed),
        ("ada", {"ada"}, {"10.1.0.2"}, End.not_entitled),
        ("ada", {"ada", "shared", "other"}, {"10.1.0.4"}, End.elsewhere),
        ("ada", {"ada", "shared"}, {"10.1.0.99"}, End.elsewhere),
    ],
)
def test_when_a_connection_ends(owner: str, usable: set[str], targets: set[str], why: End | None) -> None:
    assert rules.why_to_end(LOGIN, owner, usable, PLACES, PLACES, targets) is why


def test_a_session_that_is_removed_ends_what_leads_there_alone() -> None:
    left = {"ada": PLACES["ada"]}
    assert rules.why_to_end(LOGIN, "ada", {"ada"}, left, left, {"10.1.0.2"}) is None
    assert rules.why_to_end(LOGIN, "ada", {"ada"}, left, left, {"10.1.0.3"}) is End.elsewhere


def test_a_session_gets_the_keys_of_those_who_may_use_it_each_once() -> None:
    share = Share("ada", "ada", Kind.person, "bob")
    accounts = {name: Account(name) for name in ("ada", "bob")}
    told = Entitlements(Rights(accounts, frozenset({share})), {"ada": "ada", "bob": "bob"}, (), AT)
    keys = (PersonKey("ada", ADAS, AT), PersonKey("bob", BOBS, AT), PersonKey("eve", key(3), AT))
    sessions = keys_of_sessions(keys, told)
    assert {name: [str(one.comment) for one in own] for name, own in sessions.items()} == {
        "ada": ["ada: laptop", "bob"],
        "bob": ["bob"],
    }


def test_a_key_is_one_persons_and_nobody_has_too_many(tmp_path: Path) -> None:
    keys = PersonKeys(open_database(f"sqlite:///{tmp_path / 'refit.db'}"))
    assert [one.key for one in keys.add("ada", [ADAS])] == [ADAS]
    with pytest.raises(KeyTaken):
        keys.add("eve", [BOBS, ADAS])
    assert not keys.of("eve") and keys.find(BOBS.fingerprint) is None
    renamed = key(1, "desktop")
    assert [one.key for one in keys.add("ada", [renamed])] == [renamed]
    with pytest.raises(UnknownName):
        keys.remove("ada", ["desktop", "other"])
    with pytest.raises(UnknownName):
        keys.remove("eve", [ADAS.fingerprint])
    assert keys.remove("ada", ["desktop"]) == ()
    with pytest.raises(RefitError, match="most"):
        keys.add("ada", [key(number) for number in range(MOST_KEYS + 1)])
    keys.add("ada", [ADAS, BOBS])
    assert keys.forget("ada") == 2 and not keys.all()


def test_the_script_writes_the_files_once_and_keeps_what_is_in_the_persons_own(tmp_path: Path) -> None:
    jump = JumpHost("host.example", 17903, BOBS)
    files = client_files.Way(jump, {"ada": ADAS}).files(forward_agent=True)
    own = tmp_path / ".ssh" / "config"
    own.parent.mkdir()
    own.write_text("Host mine\n  User me")
    for _ in range(2):
        subprocess.run(["sh"], input=client_files.script(files), text=True, env={"HOME": str(tmp_path)}, check=True)
    assert own.read_text() == f"{client.INCLUDE}\n\nHost mine\n  User me"
    assert {name: (own.parent / name).read_text() for name in files} == files
    assert sorted(path.name for path in own.parent.iterdir()) == ["config", "refit"]
    other = tmp_path / "other"
    client_files.write(files, other)
    client_files.write(files, other)
    assert (other / "config").read_text() == f"{client.INCLUDE}\n" and (other / "config").stat().st_mode & 0o077 == 0
    asked = ["ssh", "-G", "-F", str(own.parent / client_files.CONFIG), "ada.refit"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"user dev", "port 2222", "proxyjump jump.host.refit", "forwardagent yes"} <= set(said)
    jump_said = subprocess.run([*asked[:-1], "jump.host.refit"], capture_output=True, text=True, check=True).stdout
    assert {"user jump", "port 17903", "hostname host.example", "forwardagent no"} <= set(jump_said.splitlines())
    assert "proxyjump" not in jump_said


def test_another_refit_tells_keys_and_a_place_and_no_line_of_a_file() -> None:
    told = client_files.from_answer("host.example", 17903, str(BOBS), {"ada": f"{ADAS}\nHost *"})
    assert told == client_files.Way(JumpHost("host.example", 17903, BOBS), {"ada": ADAS})
    signed = client_files.from_answer("host.example", 17903, str(BOBS), {}, f"{ADAS}\n@cert-authority *")
    lines = signed.files()[client_files.KNOWN_HOSTS].splitlines()
    assert lines[1:] == [f"@cert-authority [*.refit]:2222 {ADAS.kind} {ADAS.body}"]
    wrong = [
        ("host\nProxyCommand id", 1, str(BOBS), {}),
        ("", 1, str(BOBS), {}),
        ("-Fconfig", 1, str(BOBS), {}),
        ("host", 0, str(BOBS), {}),
        ("host", 65536, str(BOBS), {}),
        ("host", 1, "", {}),
        ("host", 1, "ProxyCommand id", {}),
        ("host", 1, str(BOBS), {"ada\n*": str(ADAS)}),
        ("host", 1, str(BOBS), {"*": str(ADAS)}),
        ("host", 1, str(BOBS), {"ada": 'command="id" ' + str(ADAS)}),
        ("host", 1, str(BOBS), {}, 'command="id" ' + str(ADAS)),
    ]
    for words in wrong:
        with pytest.raises(RefitError):
            client_files.from_answer(*words)
