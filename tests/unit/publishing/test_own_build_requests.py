"""The queue of builds of people's own: its order, who waits for whom, and what is left of builds that were killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from flows.core import progress
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.leases import lease
from flows.core.progress import State
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.publishing import own_build_log, own_build_log_copies, own_build_requests
from flows.publishing.own_build_requests import PLACES, BuildRequests, BuildState, Request, status
from flows.publishing.own_build_results import LONGEST, BuildResults, Outcome
from flows.publishing.own_profiles import OF_OWNER, LastBuild, LimitReached, OwnProfile, OwnProfiles, queued
from tests.support.waiting import wait_until

AT = now()
OLD, LATER = AT - timedelta(hours=2), AT - timedelta(hours=1)
MINE = OwnProfile("mine", "ada", "runtime-mine-deb12-py311", "2026a", {"display.txt": b"x"}, (), AT)
WAITS, BEGUN = Request("mine", "ada", AT), Request("mine", "ada", OLD, LATER)


@pytest.fixture
def requests(settings: Settings) -> Iterator[BuildRequests]:
    """An empty queue; ada has a profile called "mine"."""
    requests = BuildRequests(open_database(settings.database))
    OwnProfiles(requests.database).take(MINE, PersonalBuilds())
    yield requests


def test_the_first_come_first_and_nobody_has_two_at_a_time(requests: BuildRequests) -> None:
    for bundle, owner in (("one", "ada"), ("two", "ada"), ("three", "bob")):
        requests.ask(bundle, owner)
    requests.ask("one", "ada")  # it keeps its place
    first = requests.take()
    assert first and first.bundle == "one"
    with lease(requests.database, f"{OF_OWNER}ada"):
        second = requests.take()
        assert second and second.bundle == "three" and requests.take() is None
        states = requests.statuses(["one", "two", "three"])
        assert [states[name].state for name in ("one", "two")] == [BuildState.building, BuildState.waiting]
    requests.end(first, Outcome.built)
    third = requests.take()
    assert third and third.bundle == "two"
    requests.end(second, Outcome.built)
    requests.end(third, Outcome.built)
    assert requests.all() == () and requests.take() is None


def test_builds_of_somebody_who_has_left_are_not_begun(requests: BuildRequests) -> None:
    """The one that is under way comes to its end."""
    for bundle, owner in (("one", "ada"), ("two", "ada"), ("three", "bob")):
        requests.ask(bundle, owner)
    first = requests.take()
    assert first and first.bundle == "one"
    requests.leave("ada")
    assert [one.bundle for one in requests.all()] == ["one", "three"]
    assert requests.end(first, Outcome.built).owner == "ada"
    second = requests.take()
    assert second and second.bundle == "three" and requests.take() is None


def test_of_two_who_take_at_once_each_gets_another_one(requests: BuildRequests) -> None:
    for number in range(8):
        requests.ask(f"b{number}", f"person{number}")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: requests.take(), range(8)))
    assert {one.bundle for one in taken if one} == {f"b{number}" for number in range(8)}


def test_what_is_asked_for_during_a_build_is_built_afterwards(requests: BuildRequests) -> None:
    requests.ask("mine", "ada")
    begun = requests.take()
    assert begun
    requests.ask("mine", "ada")
    requests.end(begun, Outcome.built)
    assert requests.statuses(["mine"])["mine"].state is BuildState.waiting
    again = requests.take()
    assert again and again.begun != begun.begun


def test_builds_that_were_killed_are_not_begun_again(requests: BuildRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    requests.ask("mine", "ada")
    assert requests.take()
    assert requests.settle() == () and len(requests.all()) == 1  # it may be about to begin
    monkeypatch.setattr(own_build_requests, "_TO_BEGIN", timedelta(0))
    assert requests.statuses(["mine"])["mine"].state is BuildState.killed
    with lease(requests.database, queued("mine")):
        assert requests.settle() == ()
    [killed] = requests.settle()
    assert (killed.bundle, killed.owner, killed.outcome) == ("mine", "ada", Outcome.killed)
    assert requests.take() is None and requests.all() == () and requests.settle() == ()
    seen = requests.statuses(["mine"])["mine"]
    assert seen.state is BuildState.killed and seen.news == killed.at


def test_a_build_that_had_no_turn_is_told_with_its_reason(requests: BuildRequests) -> None:
    records = OwnProfiles(requests.database)
    before, _ = records.begin("mine", "ada", PersonalBuilds())
    records.end(before)
    requests.ask("mine", "ada")
    begun = requests.take()
    assert begun
    requests.end(begun, Outcome.failed, "ada has built 20 times in 24 hours" + "x" * 5000)
    seen = requests.statuses(["mine"])["mine"]
    assert seen.state is BuildState.failed and seen.problem.startswith("ada has built") and len(seen.problem) == LONGEST
    assert BuildResults(requests.database).unseen("ada") == 1
    records.begin("mine", "ada", PersonalBuilds())  # by an operator, or at night
    assert not requests.statuses(["mine"])["mine"].news and BuildResults(requests.database).unseen("ada") == 0


def test_a_result_is_news_until_its_owner_has_seen_it(requests: BuildRequests) -> None:
    results = BuildResults(requests.database)

    def build(outcome: Outcome) -> datetime:
        requests.ask("mine", "ada")
        begun = requests.take()
        assert begun
        return requests.end(begun, outcome, "no" if outcome is Outcome.failed else "").at

    first = build(Outcome.failed)
    assert (results.unseen("ada"), results.unseen("eve")) == (1, 0)
    results.mark_seen("eve", first)
    results.mark_seen("ada", first - timedelta(seconds=1))
    assert results.unseen("ada") == 1 and requests.statuses(["mine"])["mine"].news == first
    results.mark_seen("ada", first)
    assert results.unseen("ada") == 0 and requests.statuses(["mine"])["mine"].news is None
    assert build(Outcome.failed) > first and results.unseen("ada") == 1  # the same once more was asked for
    second = build(Outcome.built)
    results.mark_seen("ada", first)  # of a page that was made before
    assert results.unseen("ada") == 1
    results.mark_seen("ada", second)
    results.note_failure("mine", "ada", "by night")
    results.mark_seen("ada", now())
    results.note_failure("mine", "ada", "by night")
    assert results.unseen("ada") == 0
    results.note_failure("mine", "ada", "another reason")
    assert results.unseen("ada") == 1


def test_with_a_name_that_is_given_back_its_result_goes(requests: BuildRequests) -> None:
    records, results = OwnProfiles(requests.database), BuildResults(requests.database)
    results.note_failure("mine", "ada", "no")
    records.forget("mine", "ada")
    assert results.all() == {}


def test_a_bundle_that_was_removed_during_its_build_leaves_no_result_to_anybody(requests: BuildRequests) -> None:
    records, results = OwnProfiles(requests.database), BuildResults(requests.database)
    requests.ask("mine", "ada")
    begun = requests.take()
    assert begun
    records.forget("mine", "ada")
    requests.end(begun, Outcome.failed, "ada's secret")
    assert results.all() == {} and results.unseen("ada") == 0
    records.take(replace(MINE, owner="bob"), PersonalBuilds())
    requests.end(begun, Outcome.failed, "ada's secret")
    results.note_failure("mine", "ada", "ada's secret")
    assert results.all() == {} and requests.statuses(["mine"])["mine"].problem == ""


def test_too_many_are_refused(requests: BuildRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_build_requests, "MOST_WAITING", 1)
    requests.ask("one", "ada")
    with pytest.raises(LimitReached):
        requests.ask("two", "bob")
    requests.drop("one")
    requests.ask("two", "bob")


def test_it_is_due_as_long_as_some_wait_for_whom_nobody_works(requests: BuildRequests) -> None:
    assert not requests.due(1)
    requests.ask("one", "ada")
    assert requests.due(1) and not requests.due(0)
    with lease(requests.database, f"{PLACES}0"):
        assert not requests.due(2)
        requests.ask("two", "bob")
        assert requests.due(2) and not requests.due(1)


@pytest.mark.parametrize(
    ("request_", "held", "last", "state"),
    [
        (None, False, None, BuildState.never),
        (WAITS, False, None, BuildState.waiting),
        (WAITS, True, LastBuild(OLD, None, ""), BuildState.waiting),
        (BEGUN, True, None, BuildState.building),
        (BEGUN, True, LastBuild(OLD, OLD, "failed"), BuildState.building),
        (replace(BEGUN, begun=AT), False, None, BuildState.building),
        (BEGUN, False, None, BuildState.killed),
        (BEGUN, False, LastBuild(OLD, OLD, ""), BuildState.killed),
        (None, True, LastBuild(OLD, None, ""), BuildState.building),
        (None, False, LastBuild(OLD, None, ""), BuildState.killed),
        (None, False, LastBuild(OLD, LATER, ""), BuildState.built),
        (None, False, LastBuild(OLD, LATER, "no"), BuildState.failed),
    ],
)
def test_how_a_build_is(request_: Request | None, held: bool, last: LastBuild | None, state: BuildState) -> None:
    assert status(request_, 0, held, last, AT).state is state


def test_a_killed_build_takes_no_hours_of_its_owner(requests: BuildRequests) -> None:
    records, limits = OwnProfiles(requests.database), PersonalBuilds(hours_a_day=1)
    records.begin("mine", "ada", limits)
    _, left = records.begin("mine", "ada", limits)
    assert left > 3599


def test_its_log_has_progress_and_the_end_of_what_failed_and_nothing_of_others(settings: Settings) -> None:
    stages = settings.folder("logs", "stages")
    (stages / "jupyter-mine-deb12-0123.log").write_text(
        f"+ mount {settings.home}\n"
        + "STEP 2\n"
        + "a\x1b[2Jb\n" * 200
        + "Error: building at STEP\n+ sh -c 'rm -r \nx'\n"
    )
    (stages / "deb12-0123.log").write_text("of the operator\n")
    with pytest.raises(RefitError), own_build_log.written(settings, "ada", "mine"):
        progress.report("jupyter-mine-deb12", State.running, "STEP 1")
        progress.report("jupyter-mine-deb12", State.running, "STEP 1")
        for stage in ("deb12", "jupyter-mine-deb12"):
            progress.report(stage, State.failed, "no")
        raise RefitError("It can't be built.", why=f"for this, in {settings.home}/x", hint="see /root/secret/place")
    text, end = own_build_log.read(settings, "ada", "mine", 0)
    assert text.count("STEP 1") == 1 and text.count(r"a\x1b[2Jb") == 99 and "for this" in text
    assert "in REFIT_HOME/x" in text and "rm -r" not in text and "mount" not in text
    assert own_build_log.said_by_steps(["+ a", "STEP 1", "b", "+ rm", "c"]) == ["STEP 1", "b"]
    assert own_build_log.said_by_steps(["+ a", "b"]) == []
    assert "of the operator" not in text and "secret" not in text and "\x1b" not in text
    assert own_build_log.read(settings, "ada", "mine", end) == ("", end)
    assert own_build_log.read(settings, "ada", "mine", end + 1)[0] == text  # a log that began anew
    assert own_build_log.read(settings, "eve", "mine", 0) == ("", 0)


def test_a_log_is_bounded(settings: Settings) -> None:
    with own_build_log.written(settings, "ada", "mine"):
        for number in range(20_000):
            progress.report("s", State.running, f"{number} {'x' * 300}")
    size, end = own_build_log.path(settings, "ada", "mine").stat().st_size, 0
    assert size == own_build_log.MOST
    while part := own_build_log.read(settings, "ada", "mine", end)[1] - end:
        assert part <= own_build_log.PAGE
        end += part
    assert end == size


def test_a_log_is_read_on_another_machine_as_on_that_of_the_worker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = Settings(home=tmp_path / "page", database_url=str(settings.database), machine="page")
    monkeypatch.setattr(own_build_log_copies, "SECONDS", 0.01)
    records = OwnProfiles(open_database(settings.database))
    records.take(MINE, PersonalBuilds())

    def text_there(owner: str = "ada") -> str:
        return own_build_log.read(elsewhere, owner, "mine", 0)[0]

    own_build_log.path(elsewhere, "ada", "mine").write_text("of an older build, here")
    with own_build_log.written(settings, "ada", "mine"):
        progress.report("s", State.running, "STEP \0 1")
        wait_until(lambda: "STEP" in text_there())
    whole = own_build_log.read(settings, "ada", "mine", 0)[0]
    assert "It is built." in whole and text_there() == whole and "\0" not in whole
    end = len(whole.encode())
    assert own_build_log.read(elsewhere, "ada", "mine", end) == ("", end)
    assert text_there("eve") == ""
    own_build_log.begin_anew(elsewhere, "ada", "mine")
    assert text_there() == ""
    with own_build_log.written(settings, "ada", "mine"):
        records.forget("mine", "ada")
    assert text_there() == ""


def test_a_build_does_not_fail_for_its_log(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OperationalError("INSERT", {}, Exception("disk full"))

    monkeypatch.setattr(own_build_log_copies, "write_rows", full)
    with own_build_log.written(settings, "ada", "mine"):
        pass
    assert "It is built." in own_build_log.read(settings, "ada", "mine", 0)[0]
