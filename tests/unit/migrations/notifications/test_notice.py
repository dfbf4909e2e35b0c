"""Notices to owners: their text, their readers, and which count as delivered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr

from flows.catalog.model import Access
from flows.core import hours, operator_alerts
from flows.core.settings import Settings
from flows.core.settings.policy import Mode, SessionPolicy
from flows.migrations.notifications.notice import (
    ANSWERS,
    Notice,
    answers,
    latest_pin,
    reminder,
    to_be_reminded,
    to_be_told,
    to_be_untold,
    when,
    wish_of,
)
from flows.migrations.planning.move_terms import deadline_if_told
from flows.migrations.planning.rollout import Action, Candidate, Decision, PlanInput, Reason
from flows.sessions.activity.evidence import Activity, Evidence, Look, Process, Verdict
from flows.sessions.events import Event, Kind
from flows.sessions.ide.terminal_messages import watched
from flows.sessions.model import HomeRef, Session, TokenRef
from flows.sessions.preferences import UpdatePreferences

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
NOTICE = Notice("ada", "sha256:f9f8359748bb77", "+humanize 4.17.0", ("a kernel holds df",), 60, 15, 8, "at night", None)


def decision(action: Action, reason: Reason | None = None, name: str = "ada") -> Decision:
    return Decision(name, action, "old", "new", reason)


def event(kind: Kind, session: str = "ada", image: str = "new", **data: object) -> Event:
    return Event(1, NOW, kind, session, image, "", "", "", data)


def process(pid: int, parent: int, terminal: str = "", *argv: str) -> Process:
    return Process(pid, parent, argv or ("bash",), terminal=terminal)


def test_a_notice_says_what_changes_what_ends_when_and_how_to_answer() -> None:
    for part in (
        *("f9f8359748bb", "+humanize 4.17.0", "a kernel holds df", "at night", "60 s"),
        *(
            "refit migrate run --session ada",
            "refit session updates snooze ada 2h",
            "refit session updates mode ada pin",
        ),
    ):
        assert part in NOTICE.text
    assert "whatever works in it" not in NOTICE.text


def test_where_people_log_in_a_notice_names_their_page_and_no_command_of_the_shell() -> None:
    text = replace(NOTICE, page="http://127.0.0.1:17900/services/sessions/sessions/ada").text
    assert "http://127.0.0.1:17900/services/sessions/sessions/ada" in text and "refit " not in text


def test_a_deadline_is_told_where_there_is_one() -> None:
    forced = Notice("ada", "sha256:f9", "", (), 60, 15, 8, "at night", NOW + timedelta(days=7))
    assert "On 2026-11-28 09:00 UTC it moves whatever works in it." in forced.text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (decision(Action.wait, Reason.busy), True),
        (decision(Action.later, Reason.window), True),
        (decision(Action.migrate), False),
        (decision(Action.skip, Reason.current), False),
        (decision(Action.wait, Reason.paused), False),
        (decision(Action.wait, Reason.gate), False),
    ],
)
def test_who_waits_is_told_unless_nobody_knows_whether_the_image_is_good(line: Decision, told: bool) -> None:
    assert bool(to_be_told([line], [])) is told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (decision(Action.wait, Reason.busy), "when nobody works in it"),
        (decision(Action.wait, Reason.ask), "once you agree (its owner has to agree)"),
        (decision(Action.wait, Reason.next_start), "when it is started the next time"),
        (replace(decision(Action.later, Reason.quiet), at=NOW), "at 2026-11-21 09:00 UTC, if nobody works in it then"),
        (replace(decision(Action.wait, Reason.busy), at=NOW, forced=True), "when nobody works in it"),
    ],
)
def test_when_it_moves_is_told_as_it_is_known(line: Decision, words: str) -> None:
    assert when(line) == words


def test_nobody_is_told_of_one_image_twice_and_who_could_not_be_told_is_told_again() -> None:
    busy = decision(Action.wait, Reason.busy)
    assert to_be_told([busy], [event(Kind.noticed)]) == []
    assert to_be_told([busy], [event(Kind.not_noticed)]) == [busy]
    assert to_be_told([busy], [event(Kind.noticed, image="another")]) == [busy]
    assert to_be_told([busy], [event(Kind.noticed, session="bob")]) == [busy]


def forced(at: datetime = NOW + timedelta(hours=20)) -> Decision:
    return replace(decision(Action.wait, Reason.busy), deadline=at)


@pytest.mark.parametrize(
    ("hours", "step"), [(25, None), (24, 24), (20, 24), (1, 1), (0.5, 1), (0, None), (-1, None)], ids=str
)
def test_a_reminder_comes_at_each_step_before_a_deadline_the_nearest_alone(hours: float, step: float | None) -> None:
    line = forced(NOW + timedelta(hours=hours))
    due = to_be_reminded([line], [], {}, (24, 1), NOW)
    assert due == ([] if step is None else [(line, step)])


def test_a_reminder_is_sent_once_for_each_deadline() -> None:
    line = forced()
    sent = event(Kind.reminded, **reminder(line, 24))
    assert to_be_reminded([line], [sent], {}, (24, 1), NOW) == []
    later = replace(line, deadline=NOW + timedelta(hours=21))
    assert to_be_reminded([later], [sent], {}, (24, 1), NOW) == [(later, 24)]


def test_whoever_was_told_within_the_step_or_has_answered_isnt_reminded() -> None:
    line = forced()
    assert to_be_reminded([line], [event(Kind.noticed)], {}, (24, 1), NOW) == []
    for wish in (
        UpdatePreferences(snoozed_until=NOW + timedelta(hours=1)),
        UpdatePreferences(Mode.pin, date(2026, 12, 1)),
    ):
        assert to_be_reminded([line], [], {"ada": wish}, (24, 1), NOW) == []
    assert to_be_reminded([line], [], {"ada": UpdatePreferences(snoozed_until=NOW)}, (24, 1), NOW) == [(line, 24)]


@pytest.mark.parametrize(
    ("answer", "wish"),
    [("now", {"agreed": "new"}), ("2h", {"snoozed_until": NOW + timedelta(hours=2)}), ("rm -rf", {}), ("", {})],
)
def test_an_answer_is_a_wish_and_nothing_else_is(answer: str, wish: dict[str, object]) -> None:
    assert wish_of(answer, "new", NOW) == wish
    assert wish_of(answer, "new", NOW, agrees=False) == ({} if answer == "now" else wish)


@pytest.mark.parametrize(
    ("wish", "deadline", "pin"),
    [
        (UpdatePreferences(), None, date(2026, 11, 28)),
        (UpdatePreferences(Mode.pin, date(2026, 11, 25)), NOW + timedelta(days=30), date(2026, 11, 28)),
        (UpdatePreferences(), NOW + timedelta(days=7), date(2026, 11, 27)),
        (UpdatePreferences(), NOW + timedelta(days=3), date(2026, 11, 23)),
        (UpdatePreferences(), NOW + timedelta(days=2), None),
        (UpdatePreferences(Mode.ask), None, None),
        (UpdatePreferences(Mode.forced_by, date(2026, 12, 24)), NOW + timedelta(days=30), None),
    ],
)
def test_a_button_pins_for_a_week_and_never_past_a_deadline(
    wish: UpdatePreferences, deadline: datetime | None, pin: date | None
) -> None:
    assert latest_pin(decision(Action.wait, Reason.busy), wish, deadline, NOW) == pin
    assert latest_pin(decision(Action.wait, Reason.next_start), wish, deadline, NOW) is None
    assert dict(answers(pin, agrees=False)) == {key: text for key, text in answers(pin) if key != "now"}
    offered = answers(pin)
    assert offered[: len(ANSWERS)] == ANSWERS and len(offered) == len(ANSWERS) + bool(pin)
    if pin:
        answer, label = offered[-1]
        pinned = {"mode": Mode.pin, "until": pin, "agreed": ""}
        assert label == f"Not before {pin}" and wish_of(answer, "new", NOW, pin) == pinned
        assert wish_of("pin 2099-01-01", "new", NOW, pin) == pinned
        assert wish_of("pin tomorrow", "new", NOW, pin) == wish_of(answer, "new", NOW) == {}
        for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
            assert deadline is None or hours.midnight(pin, ZoneInfo(zone)) <= deadline.timestamp()


def test_who_was_told_of_an_image_that_is_called_off_is_told_so_and_told_anew_if_it_comes_after_all() -> None:
    told = [
        event(Kind.noticed),
        event(Kind.not_noticed, "bob"),
        event(Kind.noticed, "cyd"),
        event(Kind.noticed, "eve", "x"),
    ]
    images = {"ada": "old", "bob": "old", "cyd": "new", "eve": "old"}
    assert to_be_untold(told, images, "new") == ("ada", "bob")
    assert to_be_untold(told, {}, "new") == ()  # they are gone
    waiting = decision(Action.wait, Reason.busy)
    withdrawn = [*told, event(Kind.withdrawn)]
    assert (to_be_told([waiting], told), to_be_told([waiting], withdrawn)) == ([], [waiting])
    assert to_be_told([waiting], [*withdrawn, event(Kind.noticed)]) == []


def test_a_reminder_says_how_long_is_left() -> None:
    assert replace(NOTICE, left=24).text.startswith("The session ada gets a new image within 24 h")


def test_a_deadline_begins_when_its_owner_is_told() -> None:
    session = Session("ada", "p0", "2026a", "old", 1, HomeRef("/h"), TokenRef("/t"), Access())
    candidate = Candidate(session, True, policy=SessionPolicy(deadline_days=7))
    rollout = PlanInput(NOW, {})
    assert deadline_if_told(candidate, "new", rollout) == NOW + timedelta(days=7)
    told = Candidate(session, True, policy=SessionPolicy(deadline_days=7), notified=NOW - timedelta(days=2))
    assert deadline_if_told(told, "new", rollout) == NOW + timedelta(days=5)
    assert deadline_if_told(Candidate(session, True), "new", rollout) is None


def test_what_would_end_is_programs_and_kernels() -> None:
    results = (
        Evidence(Verdict.busy, "python train.py, pid 8", ends=True),
        Evidence(Verdict.busy, "jupyter-lab, 30% CPU, pid 6"),
        Evidence(Verdict.busy, "somebody typed in pts/0 2 min ago"),
        Evidence(Verdict.state, "kernel python3 12ab holds df", ends=True, kernel="12ab"),
        Evidence(Verdict.idle, "at its prompt: bash, pid 9", ends=True),
    )
    activity = Activity(Verdict.busy, NOW, NOW, NOW, results)
    assert [one.text for one in activity.ending] == ["python train.py, pid 8", "kernel python3 12ab holds df"]


def test_a_terminal_is_watched_if_its_other_end_is_outside_the_session() -> None:
    processes = (
        process(1, 0, "", "catatonit"),
        process(2, 1, "", "jupyter-lab"),
        process(10, 0, "/dev/pts/0", "bash"),
        process(11, 10, "/dev/pts/0", "tmux", "attach"),
        process(20, 1, "", "tmux: server"),
        process(21, 20, "/dev/pts/1", "bash"),
        process(30, 2, "/dev/pts/2", "bash"),
        process(40, 1, "", "sshd: dev@pts/3"),
        process(41, 40, "/dev/pts/3", "-bash"),
    )
    assert watched(Look(0.0, processes)) == ("/dev/pts/0", "/dev/pts/3")


def test_owners_have_addresses_of_their_own_and_those_of_all(settings: Settings) -> None:
    owners = {"ada": (SecretStr("json://ada"),), "*": (SecretStr("json://all"),)}
    changed_settings = settings.model_copy(update={"notify_owners": owners})
    assert [url.get_secret_value() for url in operator_alerts.addresses_of("ada", changed_settings)] == [
        "json://ada",
        "json://all",
    ]
    assert [url.get_secret_value() for url in operator_alerts.addresses_of("bob", changed_settings)] == ["json://all"]
    assert operator_alerts.addresses_of("bob", settings) == ()
    hers = settings.model_copy(update={"notify_owners": {**owners, "ann": (SecretStr("json://ann"),)}})
    told = [url.get_secret_value() for url in operator_alerts.addresses_of("ada", hers, "ann")]
    assert told == ["json://ada", "json://ann", "json://all"]
