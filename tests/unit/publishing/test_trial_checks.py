"""Checks of images where Refit has no Podman: what programs in a trial say, and what is made of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

import pytest
from pydantic import SecretStr

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs.command import FOREIGN_OUTPUT, ProgramFailed
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.publishing import ask_ide, checks, trial_checks
from flows.publishing.checks import ChecksFailed, Finding, Report
from flows.publishing.trial_checks import TrialLook
from tests.support.waiting import PATIENCE, serving

DIGEST = f"sha256:{'a' * 64}"
IMAGE = f"docker://registry.example/images@{DIGEST}"
IDE = Access(port=8888, health="/api", page="/lab?token={token}")
READY = {"seen": "it answers 200", "ready": True, "opens": False}
FILES = {"stale": [], "secrets": [], "unread": [], "sizes": {"pypi/rich": 3}, "packages": {"pypi/rich": "1"}}
Told = dict[str, object]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_checks, "PAUSE_SECONDS", 0.01)


class Tried:
    """Implements `trial_checks.ImageTrial` and `ImageTrials`: answers as it is told, and notes what is asked."""

    def __init__(self, **told: object) -> None:
        self.told: Told = {"ide": json.dumps(READY), "pip": "", "modules": "{}", "files": json.dumps(FILES), **told}
        self.over, self.begun, self.there = "", list[bool](), False
        self.heard: dict[str, str] = {}
        self.asked: dict[str, Sequence[str]] = {}
        self.most: dict[str, int] = {}
        self.at: str | RefitError = "192.0.2.7"

    @contextmanager
    def __call__(self, digest: str, access: Access, *, idle: bool) -> Iterator[Tried]:
        assert digest == DIGEST and not self.there
        self.begun.append(idle)
        yield self
        self.there = False

    def start(self) -> None:
        self.there = True

    def address(self) -> str:
        if isinstance(self.at, RefitError):
            raise self.at
        return self.at

    def execute(self, argv: Sequence[str], stdin: str = "", limit: float = 60.0, most: int = FOREIGN_OUTPUT) -> str:
        assert self.there and limit < 3600
        if argv[-1].startswith("cat >"):
            return ""
        asked = "pip" if argv[0] == "sh" else "ide" if argv[2] == "-" else argv[-1]
        self.heard[asked], self.asked[asked], self.most[asked] = stdin, argv, most
        if isinstance(answer := self.told[asked], Exception):
            raise answer
        return str(answer)

    def ended(self) -> str:
        return self.over

    def last_words(self) -> str:
        return "\x1b[31mbroken"


class Images:
    """A registry with one image."""

    repository = "images"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def manifest(self, repository: str, digest: str) -> str:
        assert (repository, digest) == (self.repository, DIGEST)
        return digest

    def config(self, repository: str, manifest: str) -> Mapping[str, Any]:
        return self._config


def looked(
    tried: Tried,
    settings: Settings,
    access: Access = IDE,
    config: Mapping[str, Any] | None = None,
    vouched: bool = True,
) -> Report:
    registry = cast("Registry", Images(config or {"config": {"Env": []}, "history": []}))
    return TrialLook(tried, registry)(IMAGE, access, ["rich"], settings, vouched)


def wrong(report: Report) -> dict[str, str]:
    return {finding.check: finding.seen for finding in report.findings if not finding.passed}


def test_an_image_in_which_all_is_right_passes_and_its_files_are_those_of_one_that_was_not_used(
    settings: Settings,
) -> None:
    tried = Tried()
    report = looked(tried, settings)
    assert [finding.check for finding in report.findings] == ["ide", "pip", "imports", "stale", "secrets"]
    assert report.passed and (report.sizes, report.packages) == ({"pypi/rich": 3}, {"pypi/rich": "1"})
    assert tried.begun == [False, True] and json.loads(tried.heard["modules"]) == ["rich"]


@pytest.mark.parametrize(
    ("told", "check", "seen"),
    [
        ({"ide": json.dumps({**READY, "ready": False, "seen": "it answers 500"})}, "ide", "not 200 within"),
        ({"ide": json.dumps({**READY, "opens": True})}, "ide", "opens without its token"),
        ({"pip": ProgramFailed(["pip"], "ended with exit code 1", "rich needs pygments", None, 1)}, "pip", "pygments"),
        ({"modules": '{"rich": "no module \\u001b[2J"}'}, "imports", "rich: no module"),
        ({"files": json.dumps({**FILES, "stale": ["/a.pyc: it is cut short"]})}, "stale", "/a.pyc"),
        ({"files": json.dumps({**FILES, "secrets": ["/etc/pip.conf: index-url"]})}, "secrets", "/etc/pip.conf"),
    ],
)
def test_each_mistake_is_found_and_shown_as_text(settings: Settings, told: Told, check: str, seen: str) -> None:
    found = wrong(looked(Tried(**told), settings))
    assert [*found] == [check] and seen in found[check]
    assert "\x1b" not in found[check]


def test_secrets_are_searched_for_in_the_configuration_and_no_program_of_the_image_hears_one(
    settings: Settings,
) -> None:
    secret = settings.model_copy(
        update={
            "metrics_token": SecretStr("correct horse"),
            "registry_password": SecretStr("battery staple"),
            "database_url": "postgresql://refit:stapled-horse@db.example/refit",
        }
    )
    tried = Tried()
    told = looked(tried, secret, config={"config": {"Env": ["COLOUR=correct horse"]}, "history": []})
    assert wrong(told)["secrets"].startswith("environment: holds metrics_token\n")
    values = checks.secret_values(secret).values()
    assert {"correct horse", "battery staple", "stapled-horse"} <= {*values}
    given = [*tried.heard.values(), *(" ".join(argv) for argv in tried.asked.values())]
    assert not [value for value in values if value in "\n".join(given)]
    assert tried.heard["files"] == "{}"  # all that the look at files is given


def test_what_was_not_searched_for_secrets_is_said(settings: Settings) -> None:
    closed = [f"/root/{number}\x1b" for number in range(9)]
    report = looked(Tried(files=json.dumps({**FILES, "unread": closed})), settings)
    (seen,) = [finding.seen for finding in report.findings if finding.check == "secrets"]
    assert report.passed and seen.startswith("none\n") and "\x1b" not in seen
    assert "may not read them (9): /root/0" in seen and "/root/7" in seen and "/root/8" not in seen
    assert "Refit's own secrets: searched for in the configuration alone" in seen


@pytest.mark.parametrize(
    ("address", "own"), [("192.0.2.7", "http://192.0.2.7:8888"), ("2001:db8::7", "http://[2001:db8::7]:8888")]
)
def test_an_ide_is_asked_where_people_reach_it(settings: Settings, address: str, own: str) -> None:
    tried = Tried()
    tried.at = address
    looked(tried, settings)
    assert [*tried.asked["ide"]][3:5] == [f"{own}/api", f"{own}/lab?token="]


def test_one_without_an_address_has_ended_or_is_no_mistake_of_the_image(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Tried()
    tried.at, tried.over = RefitError("The Pod has no address."), "It has ended."
    assert "ended at once" in wrong(looked(tried, settings))["ide"]
    monkeypatch.setattr(trial_checks, "END_SECONDS", 0.01)
    tried.over = ""
    with pytest.raises(RefitError, match="has no address"):
        looked(tried, settings)


def test_a_page_without_a_token_is_not_asked_for(settings: Settings) -> None:
    tried = Tried()
    assert looked(tried, settings, Access(port=8888, health="/api", page="/")).passed
    assert tried.asked["ide"][4] == ""


def test_programs_of_an_image_may_print_as_much_as_on_one_machine(settings: Settings) -> None:
    tried = Tried()
    looked(tried, settings)
    assert {asked: tried.most[asked] for asked in ("pip", "modules", "files")} == dict.fromkeys(
        ("pip", "modules", "files"), checks.MOST_TOLD
    )


@pytest.mark.parametrize("access", [IDE, Access()], ids=["ide", "none"])
def test_an_image_whose_program_ends_at_once_says_so(settings: Settings, access: Access) -> None:
    tried = Tried(ide=RefitError("the connection was lost"))
    tried.over = "It has ended."
    found = wrong(looked(tried, settings, access))
    assert [*found] == ["ide" if access.port else "steady"]
    assert "ended at once" in str(found) and "broken" in str(found) and "\x1b" not in "".join(found.values())
    assert tried.begun == [False]


def test_one_without_an_ide_has_to_go_on_for_a_while(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_checks, "STEADY_SECONDS", 0.01)
    tried = Tried()
    assert looked(tried, settings, Access()).passed and "ide" not in tried.heard


def test_an_end_that_is_told_later_than_it_is_felt_counts_as_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, told = Tried(ide=RefitError("no running task found")), iter(["", "It has ended."])
    monkeypatch.setattr(tried, "ended", lambda: next(told))
    assert "ended at once" in wrong(looked(tried, settings))["ide"]


def test_a_connection_that_is_lost_is_no_mistake_of_the_image(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_checks, "END_SECONDS", 0.01)
    with pytest.raises(RefitError, match="the connection was lost"):
        looked(Tried(ide=RefitError("the connection was lost")), settings)


@pytest.mark.parametrize("asked", ["ide", "modules", "files"])
@pytest.mark.parametrize("printed", ["", "[]", "{}1", '{"ready": 1}', "\x00"])
def test_a_python_that_prints_something_else_is_named(settings: Settings, asked: str, printed: str) -> None:
    with pytest.raises(RefitError, match="doesn't run the probe"):
        looked(Tried(**{asked: printed}), settings)


def test_an_image_of_a_persons_own_is_not_even_started(settings: Settings) -> None:
    tried = Tried()
    with pytest.raises(RefitError, match="can't be checked in a cluster"):
        looked(tried, settings, vouched=False)
    assert tried.begun == []


def test_checks_that_passed_in_another_place_are_run_again(settings: Settings) -> None:
    class Here:
        way = ""

        def __call__(
            self, image: str, access: Access, distributions: object, settings: object, vouched: bool
        ) -> Report:
            return Report((Finding("ide", True, "here"),))

    def seen(look: checks.Look) -> str:
        return checks.run(IMAGE, "content", IDE, ["rich"], settings, look=look).findings[0].seen

    tried = Tried()
    elsewhere = TrialLook(tried, cast("Registry", Images({"config": {}, "history": []})))
    assert [seen(Here()), seen(elsewhere), seen(elsewhere)] == ["here", *["/api: it answers 200"] * 2]
    assert tried.begun == [False, True]  # once


def test_what_fails_names_all_that_is_wrong(settings: Settings) -> None:
    report = looked(Tried(modules='{"rich": "gone"}'), settings)
    assert "rich: gone" in ChecksFailed("image", report.findings).why


class Ide(BaseHTTPRequestHandler):
    """Is ready, shows its page to nobody, and says too much."""

    def do_GET(self) -> None:
        if self.path == "/resets":
            self.close_connection = True
            return
        code = {"/api": 200, "/closed": 302, "/open": 200}.get(self.path, 500)
        self.send_response(code)
        self.send_header("Location", "/open")
        self.end_headers()
        self.wfile.write(b"x" * (1 << 16))

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("page", "opens"), [("/closed", False), ("/open", True), ("/ill", False), ("/resets", False)])
def test_a_page_is_open_if_it_answers_itself(page: str, opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(Ide) as port:
        own = f"http://127.0.0.1:{port}"
        assert ask_ide.asked(f"{own}/api", f"{own}{page}", PATIENCE) == {**READY, "opens": opens}


def test_an_ide_without_a_page_of_its_own_is_asked_for_its_health_alone() -> None:
    with serving(Ide) as port:
        assert ask_ide.asked(f"http://127.0.0.1:{port}/api", "", PATIENCE) == READY


def test_what_never_answers_is_asked_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_ide, "PAUSE_SECONDS", 0.01)
    with serving(Ide) as port:
        ill = ask_ide.asked(f"http://127.0.0.1:{port}/ill", f"http://127.0.0.1:{port}/open", 0.05)
    assert ill == {"seen": "it answers 500", "ready": False, "opens": False}
    with socket.socket() as nobody:  # bound, so that no other program answers there
        nobody.bind(("127.0.0.1", 0))
        own = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        gone = ask_ide.asked(f"{own}/api", f"{own}/open", 0.05)
    assert gone["ready"] is False and "refused" in str(gone["seen"])


def test_what_speaks_no_http_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(_: str) -> int:
        raise BadStatusLine("SSH-2.0")

    monkeypatch.setattr(ask_ide, "code", odd)
    assert ask_ide.asked("http://x", "http://y", 0.0) == {"seen": "SSH-2.0", "ready": False, "opens": False}
