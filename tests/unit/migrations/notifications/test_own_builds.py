"""Notices that a build has ended, for its owner: where they are left, where not, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core import operator_alerts
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.migrations.notifications import own_builds
from flows.publishing.own_build_results import Outcome, Result
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.ide import terminal_messages
from flows.sessions.ide.jupyter import Jupyter
from flows.sessions.ide.page_notices import OnPage, Windows
from flows.sessions.lifecycle import Sessions

MINE = OwnProfile("mine", "ada", "jupyter-mine-deb12-py311", "2026a", {"display.txt": b"x"}, (), now())
FAILED = Result("mine", "ada", Outcome.failed, now(), "a secret that the step printed")


class Lab(Jupyter):
    """A page with notices."""

    def __init__(self, notices: Mapping[str, OnPage]) -> None:
        self.shown, self.left = notices, list[tuple[str, str, str]]()

    def notices(self) -> dict[str, OnPage]:
        return dict(self.shown)

    def leave_notice(self, id: str, title: str, text: str, answers: Any = ()) -> None:
        self.left.append((id, title, text))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(own_builds, "see", lambda engine, session: None)
    monkeypatch.setattr(terminal_messages, "watched", lambda look: ("/dev/pts/0",))
    monkeypatch.setattr(terminal_messages, "write", lambda engine, session, text, at: texts.append(text))
    return texts


def tell(settings: Settings, monkeypatch: pytest.MonkeyPatch, pages: Mapping[str, object], result: Result) -> None:
    """Tell, where each session of these names has such pages; one without any is stopped."""

    def that_runs(name: str) -> str:
        if pages[name] is None:
            raise RefitError("It is stopped.")
        return name

    owners = {name: "eve" if name == "eves" else "ada" for name in pages}
    store, by_name = SimpleNamespace(owners=lambda: owners), dict(pages)
    sessions = SimpleNamespace(store=store, that_runs=that_runs, pages=by_name.get, engine=None)
    monkeypatch.setattr(Sessions, "open", lambda settings: sessions)
    own_builds.tell(settings, result)


def test_it_is_left_in_the_sessions_of_its_owner_without_its_reason(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    OwnProfiles(open_database(settings.database)).take(MINE, PersonalBuilds())
    ours, busy, eves = Lab({}), Lab({"an image": OnPage("an image", True, "")}), Lab({})
    closed, again = (
        Lab({"x": OnPage("x", True, "", closed=True)}),
        Lab({"own-build x": OnPage("own-build x", True, "")}),
    )
    every = {"a": ours, "b": busy, "c": closed, "d": again, "eves": eves, "gone": None}
    tell(settings, monkeypatch, every, FAILED)
    assert [len(one.left) for one in (ours, closed, again, busy, eves)] == [1, 1, 1, 0, 0], "one about a move stays"
    [(_, title, text)] = ours.left
    assert title == "Your profile mine wasn't built" and "build-log" in text and "secret" not in title + text
    assert len(written) == 4 and "secret" not in "".join(written)


def test_nothing_is_told_of_a_name_that_is_another_persons_and_vs_code_shows_the_whole(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    page = Lab({})
    tell(settings, monkeypatch, {"a": page}, FAILED)
    assert page.left == [] and written == []
    OwnProfiles(open_database(settings.database)).take(MINE, PersonalBuilds())
    windows, shown = Windows.__new__(Windows), list[str]()
    monkeypatch.setattr(Windows, "leave_notice", lambda *_: pytest.fail("another notice would be lost"))
    monkeypatch.setattr(Windows, "add_notice", lambda _, id, title, text, kind: shown.append(f"{kind}|{id}|{text}"))
    tell(settings, monkeypatch, {"a": windows}, FAILED)
    assert len(written) == 1
    [text] = shown
    assert text.startswith("own-build |own-build mine ") and "Your profile mine wasn't built. `refit mine" in text


def test_owners_are_told_at_their_own_addresses_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    OwnProfiles(open_database(settings.database)).take(MINE, PersonalBuilds())
    sent: list[tuple[object, str, str]] = []
    monkeypatch.setattr(operator_alerts, "send_to", lambda to, title, text, _: sent.append((to, title, text)) or ())
    told = settings.model_copy(
        update={"notify_owners": {"ada": ("json://ada",), "*": ("json://all",), "eve": ("json://eve",)}}
    )
    tell(told, monkeypatch, {}, Result("mine", "ada", Outcome.built, now()))
    [(to, title, text)] = sent
    assert to == ("json://ada",) and title == "Refit: Your profile mine was built" and MINE.profile in text


def test_a_machine_without_an_engine_keeps_no_other_build_waiting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    OwnProfiles(open_database(settings.database)).take(MINE, PersonalBuilds())

    def fails(_: object) -> None:
        raise OSError("no podman")

    monkeypatch.setattr(Sessions, "open", fails)
    own_builds.tell(settings, FAILED)
