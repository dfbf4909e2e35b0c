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

from tests.support.command_line import in_process
from tests.support.waiting import serving

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy ada@laptop"


@dataclass
class There:
    """A Refit elsewhere."""

    folder: Path
    status: int = 200
    answer: object = field(default_factory=list)
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
def there(tmp_path: Path) -> Iterator[There]:
    there = There(tmp_path)

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
            there.heard.append(f"{self.command} {self.path} {sent.decode()}")
            content = json.dumps(there.answer).encode()
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


def test_a_session_that_is_made_has_a_page_that_shows_how_far_it_is(there: There) -> None:
    there.status, there.answer = 202, {"server": "notes", "page": "/hub/spawn-pending/ada/notes"}
    assert "/hub/spawn-pending/ada/notes" in there.says("create", "some", "2026a", "--name", "notes").stdout
