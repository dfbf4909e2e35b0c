"""`refit mine` for sessions that are made, shared, snapshot, compared, copied and reached by ssh: each verb once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub import RELEASE, Hub, Person
from tests.support.machine import FIRST
from tests.support.my_sessions import api, refit

Mine = Callable[..., Any]


@pytest.fixture
def mine(hub: Hub, ada: Person, tmp_path: Path) -> Mine:
    """`refit mine … --json` on Ada's laptop."""
    kept = tmp_path / "refit" / "login.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"url": hub.settings.gateway_url, "token": api(ada).token}))

    def ask(*words: str) -> Any:
        done = refit(tmp_path, "mine", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def test_a_session_is_made_and_shared_and_the_share_ends(hub: Hub, ada: Person, tmp_path: Path, mine: Mine) -> None:
    made = mine("create", FIRST, RELEASE, "--name", "laptop")
    assert (made["name"], made["server"], made["state"]) == ("ada--laptop", "laptop", "running")
    hub.person("gus")
    assert mine("share", "ada--laptop", "--with", "gus", "--until", "2h")["until"]
    link = mine("share", "ada--laptop")["link"]
    assert link.startswith(hub.settings.gateway_url)
    assert {one["kind"] for one in mine("shares", "ada--laptop")} == {"person", "code"}
    ended = refit(tmp_path, "mine", "unshare", "ada--laptop", "--with", "gus")
    assert ended.returncode == 0 and "isn't shared with gus any more" in ended.stdout
    assert {one["kind"] for one in mine("shares", "ada--laptop")} == {"code"}
    assert "isn't shared with 'gus'" in refit(tmp_path, "mine", "unshare", "ada--laptop", "--with", "gus").stderr


def test_a_home_goes_back_as_a_whole_and_by_single_files(hub: Hub, ada: Person, mine: Mine) -> None:
    def write(text: str) -> None:
        hub.sessions.execute("ada", ["sh", "-c", f"printf {text} > ~/mine.txt"])

    def reads() -> str:
        return Path(hub.sessions.homes.home_of("ada"), "mine.txt").read_text()

    write("one")
    mine("snapshot", "ada", "--name", "by-mine")
    assert "by-mine" in {one["name"] for one in mine("snapshots", "ada")}
    write("another")
    assert any("mine.txt" in change for change in mine("diff", "ada", "by-mine")["changes"])
    mine("rollback", "ada", "by-mine", "--only", "mine.txt")
    assert reads() == "one"
    write("a-third")
    mine("rollback", "ada", "by-mine", "--yes", "--force")
    assert reads() == "one"
    mine("clone", "ada", "try-it", "--snapshot", "by-mine")
    [copy] = [one["name"] for one in mine("list") if one["owner"] == "ada" and "try-it" in one["name"]]
    assert Path(hub.sessions.homes.home_of(copy), "mine.txt").read_text() == "one"
    mine("remove-snapshot", "ada", "by-mine", "--yes")
    assert "by-mine" not in {one["name"] for one in mine("snapshots", "ada")}


def test_keys_are_added_and_removed(ada: Person, tmp_path: Path, mine: Mine) -> None:
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-C", "desk", "-f", tmp_path / "key"], check=True)
    [added] = mine("add-key", str(tmp_path / "key.pub"))
    assert added["title"] == "desk" and mine("keys") == [added]
    assert mine("remove-key", added["fingerprint"]) == []
    files = mine("ssh-config", "--host", "refit.example", "--forward-agent")
    assert "HostName refit.example" in files["refit/config"] and "ForwardAgent yes" in files["refit/config"]
    assert files["refit/known_hosts"].startswith("jump.host.refit ssh-ed25519 ")
