"""`refit mine` against an API that answers as it is told to: words for people, and what leaves their machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from flows.cli import laptop_access
from tests.support.command_line import in_process
from tests.support.waiting import serving

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy ada@laptop"


@dataclass
class There:
    """A Refit elsewhere.

    Attributes:
        folder: of whoever is logged in there.
        status, answer: its answer to all that is asked.
        in_turn: a request, like `GET /sessions` → the answers to the first, the second, …; the last one stays.
        heard: the requests, with what was sent.
    """

    folder: Path
    status: int = 200
    answer: object = field(default_factory=list)
    in_turn: dict[str, list[object]] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    def says(self, *words: str) -> CompletedProcess[str]:
        return in_process(self.folder / "home", "mine", *words, XDG_CONFIG_HOME=str(self.folder))

    def refuses(self, code: str, *words: str, **more: str) -> str:
        """The words of a command to which it says no."""
        self.status, self.answer = 409, {"title": "No.", "code": code, **more}
        done = self.says(*words)
        assert done.returncode == 1
        return done.stderr


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    monkeypatch.setattr(laptop_access, "_LOOK_SECONDS", 0.01)
    there = There(tmp_path)

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
            there.heard.append(f"{self.command} {self.path} {sent.decode()}")
            several = there.in_turn.get(f"{self.command} {self.path.removeprefix('/services/sessions/api')}", [])
            answer = several.pop(0) if len(several) > 1 else several[0] if several else there.answer
            content = json.dumps(answer).encode()
            self.send_response(there.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Api) as port:
        (tmp_path / "refit").mkdir()
        login = {"url": f"http://127.0.0.1:{port}", "token": "a token"}
        (tmp_path / "refit" / "login.json").write_text(json.dumps(login))
        yield there


@pytest.mark.parametrize("content", [PRIVATE, "\x00\xff", "", f"{PUBLIC}\n{PRIVATE}", "x" * 70_000])
def test_a_file_that_is_no_public_key_never_leaves_the_machine(there: There, content: str) -> None:
    file = there.folder / "id"
    file.write_bytes(content.encode("latin-1"))
    done = there.says("add-key", str(file))
    assert done.returncode == 1 and ".pub" in done.stderr and "Traceback" not in done.stderr
    assert there.heard == []


def test_of_a_file_with_keys_the_keys_are_sent(there: There) -> None:
    file = there.folder / "id.pub"
    file.write_text(f"# of my desk\n{PUBLIC}\n")
    there.answer = [{"title": "ada@laptop", "fingerprint": "SHA256:x", "added": "2026-11-26T11:06:44.386175Z"}]
    assert re.search(r" 2026-11-2[567] \d\d:\d6\s", there.says("add-key", str(file)).stdout)
    [sent] = there.heard
    assert json.loads(sent.split(" ", 2)[2]) == {"keys": PUBLIC}


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        ("unknown", ("show", "nobody"), "`refit mine list`"),
        ("scope-missing", ("overview",), "`refit login URL`"),
        ("not-logged-in", ("list",), "`refit login URL` logs you in again."),
        ("refused", ("remove-key", "desk"), "`refit mine keys`"),
        ("refused", ("snooze", "ada", "soon"), "write 30m"),
        ("refused", ("share", "ada", "--with", "eve", "--until", "soon"), "write 30m"),
    ],
)
def test_a_refusal_names_a_command_of_the_person_who_reads_it(
    there: There, code: str, words: tuple[str, ...], said: str
) -> None:
    assert said in there.refuses(code, *words)


def test_the_advice_of_the_api_is_told_where_it_has_some(there: There) -> None:
    assert "Hint: wait a minute." in there.refuses("busy", "snooze", "ada", "1h", hint="wait a minute.")


@pytest.mark.parametrize(
    ("words", "said"),
    [(("keys",), "Keys: none."), (("shares", "ada"), "Shares: none."), (("list",), "Sessions: none.")],
)
def test_an_empty_list_says_of_what(there: There, words: tuple[str, ...], said: str) -> None:
    assert said in there.says(*words).stdout


OLD, NEW = (f"sha256:{letter * 64}" for letter in "ab")
NOTES: dict[str, object] = {
    **{"name": "ada--notes", "server": "notes", "role": "owner", "state": "running", "profile": "some"},
    **{"disk": [], "image": {"digest": OLD}, "update": None, "url": "/user/ada/notes/"},
}


def _creation(since: int, ended: bool = False, problem: str = "", hint: str = "") -> dict[str, object]:
    return {"server": "notes", "since": f"T{since}", "ended": ended, "problem": problem, "hint": hint}


def _create(there: There, *creations: list[dict[str, object]]) -> CompletedProcess[str]:
    there.in_turn |= {
        "POST /sessions": [{"server": "notes", "page": "/hub/spawn-pending/ada/notes"}],
        "GET /profiles": [[{"profile": "some", "release": "2026a", "by": "eve"}]],
        "GET /creations": list(creations),
        "GET /sessions": [[NOTES]],
    }
    return there.says("create", "some", "2026a", "--name", "notes")


def test_a_session_that_is_made_is_waited_for_and_a_page_shows_how_far_it_is(there: There) -> None:
    done = _create(there, [], [], [_creation(1)], [_creation(1, ended=True)])
    assert "/hub/spawn-pending/ada/notes" in done.stdout and "/user/ada/notes/" in done.stdout


def test_whose_own_profile_a_session_gets_is_said_before_it_gets_it(there: There) -> None:
    done = _create(there, [], [_creation(1)], [_creation(1, ended=True)])
    assert "some is eve's own profile. Nobody else vouches for what it runs" in done.stderr
    asked = [line.partition("/api")[2].split()[0] for line in there.heard]
    assert asked.index("/profiles") < asked.index("/sessions")
    there.in_turn["GET /profiles"] = [[{"profile": "some", "release": "2026a", "by": ""}]]
    there.in_turn["GET /creations"] = [[], [_creation(2)], [_creation(2, ended=True)]]
    assert "vouches" not in there.says("create", "some", "2026a", "--name", "notes").stderr


def test_why_a_session_was_not_made_is_told(there: There) -> None:
    failed = _creation(1, ended=True, problem="The disk is full.", hint="remove something.")
    done = _create(there, [], [failed])
    assert done.returncode == 1 and "The disk is full." in done.stderr and "Hint: remove something." in done.stderr


def test_an_attempt_that_failed_before_is_not_taken_for_this_one(there: There) -> None:
    failed = _creation(1, ended=True, problem="The disk is full.")
    done = _create(there, [failed], [failed], [_creation(2, ended=True)])
    assert done.returncode == 0 and "The disk is full." not in done.stderr + done.stdout


def _behind(by: str) -> dict[str, object]:
    update = {"image": {"digest": NEW}, "by": by, "changes": "numpy 2.0 → 2.1", "when": "It asks."}
    return {**NOTES, "update": update, "doing": None}


def _moves(there: There, by: str, *words: str) -> tuple[CompletedProcess[str], list[str]]:
    """The command's output, and the moves that the API was asked for."""
    there.in_turn |= {"GET /sessions/notes": [_behind(by)], "POST /sessions/notes/move": [_behind("")]}
    done = there.says("move", "notes", *words)
    return done, [line.partition(" ")[2] for line in there.heard if line.startswith("POST")]


@pytest.mark.parametrize(("by", "words"), [("", ()), ("eve", ("--yes",))])
def test_a_session_moves_onto_the_image_that_was_there_when_its_owner_looked(
    there: There, by: str, words: tuple[str, ...]
) -> None:
    done, asked = _moves(there, by, *words)
    assert done.returncode == 0 and len(asked) == 1 and NEW in asked[0]
    assert ("eve built it" in done.stderr) == ("numpy 2.0 → 2.1" in done.stderr) == bool(by)


def test_without_an_answer_no_session_moves_onto_another_persons_image(there: There) -> None:
    done, asked = _moves(there, "eve")
    assert done.returncode == 1 and asked == [] and "nobody else vouches" in done.stderr


def test_where_no_newer_image_is_shown_none_that_comes_meanwhile_is_agreed_to(there: There) -> None:
    there.in_turn |= {"GET /sessions/notes": [NOTES], "POST /sessions/notes/move": [_behind("")]}
    there.says("move", "notes")
    assert [line.split()[0] for line in there.heard] == ["GET", "POST"] and OLD in there.heard[-1]
