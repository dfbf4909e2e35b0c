"""Going back to a snapshot, on simulated sessions: as a move, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.errors import RefitError, UnknownName
from flows.core.settings.policy import Mode
from flows.migrations.move_steps import State
from flows.migrations.recovery import recover_all
from flows.migrations.results import Result
from flows.migrations.snapshots import snapshot_actions, snapshot_schedule
from flows.migrations.snapshots.roll_back import InUse, foresee, roll_back
from flows.sessions.model import Running, Session
from flows.sessions.snapshots.model import Kind
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.wishes import PreferenceStore
from tests.support.simulated.faults import happening
from tests.support.simulated.fleet import OWN, Fleet, fleet
from tests.support.simulated.upsets import IMAGES
from tests.support.simulated.world import Killed, Point, differing

THEN = "then"


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "home") as simulated, simulated.in_charge():
        yield simulated


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    """A session of which there is a snapshot, and in which somebody has worked since."""
    ada = sessions.add(1, sessions.image("old"))
    snapshot_actions.take(sessions.sessions, ada.name, "ada", called=THEN)
    with sessions.world.person():
        for box in sessions.world.of(ada.name):
            sessions.world.work(ada.name, "worked since")
            box.used = False
    return ada


def back(sessions: Fleet, ada: Session, **options: bool) -> Result:
    sessions.world.consents[ada.name] = "agreed" if options.get("force") else ""
    return roll_back(sessions.settings, ada.name, THEN, "ada", **options)


def home(sessions: Fleet, session: Session) -> dict[str, str]:
    """The files of the home, without those that an IDE writes by itself."""
    content = sessions.world.homes[str(session.home)]
    return {path: text for path, text in content.items() if not path.startswith(".cache")}


def snapshot(sessions: Fleet, ada: Session, name: str = THEN) -> dict[str, str]:
    chosen = snapshot_actions.find(sessions.sessions, ada.name, name)
    content = sessions.world.snapshots[ada.name, chosen.id][""]
    return {path: text for path, text in content.items() if not path.startswith(".cache")}


def safety(sessions: Fleet, ada: Session) -> str:
    [one] = [
        one.snapshot for one in snapshot_actions.listed(sessions.sessions, ada.name) if one.snapshot.kind is Kind.safety
    ]
    return one.name


def healthy(sessions: Fleet, session: Session) -> bool:
    recorded = sessions.sessions.store.session(session.name)
    [box] = sessions.world.of(session.name)
    return box.session == recorded and box.running is Running.running and not box.shut


def test_the_home_goes_back_and_as_it_was_is_a_snapshot_itself(sessions: Fleet, ada: Session) -> None:
    before = home(sessions, ada)
    result = back(sessions, ada)
    assert result.moved and safety(sessions, ada) in result.reason
    assert home(sessions, ada) == snapshot(sessions, ada) != before
    kept = snapshot(sessions, ada, safety(sessions, ada))
    assert not differing(before, {path: text for path, text in kept.items() if path != "saved at the end"})
    assert healthy(sessions, ada)
    after = sessions.sessions.store.session(ada.name)
    assert (after.image, after.access, after.home) == (ada.image, ada.access, ada.home)
    # And forth again, to what it was.
    assert roll_back(sessions.settings, ada.name, safety(sessions, ada), "ada").moved
    assert home(sessions, ada) == kept


def test_what_would_happen_is_shown_and_nothing_is_touched(sessions: Fleet, ada: Session) -> None:
    before = home(sessions, ada)
    foreseen_rollback = foresee(sessions.settings, ada.name, THEN)
    assert (foreseen_rollback.image, foreseen_rollback.runs, foreseen_rollback.work) == (ada.image, True, "")
    assert any("worked since" in change for change in foreseen_rollback.changed)
    assert home(sessions, ada) == before and not sessions.world.stops[ada.container]


def test_where_somebody_works_it_is_refused_without_force(sessions: Fleet, ada: Session) -> None:
    sessions.world.busy.add(ada.name)
    before = home(sessions, ada)
    with pytest.raises(InUse, match=r"train\.py") as refused:
        back(sessions, ada)
    assert "--force" in refused.value.hint and not sessions.journal.history(ada.name)
    assert home(sessions, ada) == before and "train.py" in foresee(sessions.settings, ada.name, THEN).work
    assert back(sessions, ada, force=True).moved and home(sessions, ada) == snapshot(sessions, ada)


def test_whoever_begins_to_work_meanwhile_is_left_alone(sessions: Fleet, ada: Session) -> None:
    before = home(sessions, ada)
    happening(sessions, "shut out", "before", lambda: sessions.world.busy.add(ada.name))
    result = back(sessions, ada)
    assert result.state is State.deferred and "train.py" in result.reason
    assert home(sessions, ada) == before and not sessions.world.stops[ada.container] and healthy(sessions, ada)
    assert [one.snapshot.name for one in snapshot_actions.listed(sessions.sessions, ada.name)] == [THEN]


def test_one_that_is_stopped_starts_with_the_home_of_then(sessions: Fleet, ada: Session) -> None:
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
    assert back(sessions, ada).moved
    assert home(sessions, ada) == snapshot(sessions, ada) and healthy(sessions, ada)


def test_one_that_is_ill_goes_back_all_the_same(sessions: Fleet, ada: Session) -> None:
    left = ["the first time"]

    def ill(point: Point) -> None:
        if (point.verb, point.when) == ("ready", "before") and left:
            left.pop()
            raise RefitError("it is ill")

    sessions.world.meanwhile = ill
    assert back(sessions, ada, force=True).moved and not left


def test_with_the_image_of_then(sessions: Fleet, ada: Session) -> None:
    assert sessions.executor().carry_out(sessions.to(ada, sessions.image("new"))).moved
    with pytest.raises(UnknownName):
        roll_back(sessions.settings, ada.name, "another", "ada")
    assert back(sessions, ada, with_image=True).moved
    assert sessions.sessions.store.session(ada.name).image == ada.image
    assert home(sessions, ada) == snapshot(sessions, ada)
    assert PreferenceStore(sessions.database).all()[ada.name].mode is Mode.ask


def test_without_it_the_image_stays(sessions: Fleet, ada: Session) -> None:
    new = sessions.image("new")
    assert sessions.executor().carry_out(sessions.to(ada, new)).moved
    assert back(sessions, ada).moved and sessions.sessions.store.session(ada.name).image == new


@pytest.mark.parametrize("what", ["never ready", "miscalculates", "writes into the home", "ends at once"])
def test_what_does_not_come_up_with_the_home_of_then_goes_back_to_what_it_was(
    sessions: Fleet, ada: Session, what: str
) -> None:
    before, good = home(sessions, ada), sessions.world.images[ada.image]

    def meanwhile(point: Point) -> None:
        """The image is ill until the session goes back."""
        ill = sessions.world.step not in ("halt", "reinstate", "revive", "rewarm")
        sessions.world.images[ada.image] = IMAGES[what] if ill and sessions.world.stops[ada.container] else good

    sessions.world.meanwhile = meanwhile
    chosen = snapshot_actions.find(sessions.sessions, ada.name, THEN)
    result = sessions.executor().carry_out(sessions.to(ada, ada.image), back_to=chosen.id)
    assert result.state is State.rolled_back and not result.damaged
    assert not differing(before, home(sessions, ada), ("saved at the end",))
    assert healthy(sessions, ada) and list(sessions.world.snapshots) == [(ada.name, chosen.id)]


MOMENTS = [
    *((verb, when) for verb in ("pull", "create", "stop", "start", "remove") for when in ("before", "after")),
    *((verb, when) for verb in ("copy", "snapshot", "restore") for when in ("before", "middle", "after")),
    *((verb, "before") for verb in ("ready", "check room", "shut out", "compare", "lead", "cell", "end", "probe")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "when"), MOMENTS)
def test_killed_before_and_after_every_effect_the_home_is_as_before_or_as_then(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    def kill() -> None:
        sessions.world.alive = False
        raise Killed

    before, then = home(sessions, ada), snapshot(sessions, ada)
    executor = sessions.executor()
    happening(sessions, verb, when, kill)
    decision = sessions.to(ada, ada.image)
    chosen = snapshot_actions.find(sessions.sessions, ada.name, THEN)
    with pytest.raises(Killed):
        executor.carry_out(decision, back_to=chosen.id)
    recover_all(sessions.executor())
    assert not sessions.journal.unfinished() and healthy(sessions, ada)
    [done] = sessions.journal.history(ada.name)
    home_now = home(sessions, ada)
    if done.state is State.cleaned:
        assert home_now == then
        assert not differing(before, snapshot(sessions, ada, safety(sessions, ada)), ("saved at the end",))
    else:
        assert not differing(before, home_now, ("saved at the end",))
        assert list(sessions.world.snapshots) == [(ada.name, chosen.id)]


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "when"), [moment for moment in MOMENTS if moment[0] != "end"])
def test_what_fails_at_any_effect_leaves_the_home_as_before(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    def fail() -> None:
        raise RefitError("it failed")

    before, then = home(sessions, ada), snapshot(sessions, ada)
    happening(sessions, verb, when, fail)
    with_error = sessions.executor().carry_out(
        sessions.to(ada, ada.image),
        back_to=snapshot_actions.find(sessions.sessions, ada.name, THEN).id,
    )
    home_now = home(sessions, ada)
    if with_error.moved:
        assert home_now == then
    elif with_error.state is not State.held:
        assert not differing(before, home_now, ("saved at the end",))
    assert sessions.sessions.store.session(ada.name).home == ada.home and OWN


@pytest.mark.parametrize(
    ("verb", "when"), [(v, w) for v, w in MOMENTS if v in ("stop", "snapshot", "restore", "start")]
)
def test_the_schedule_leaves_a_session_alone_that_goes_back(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    policy = sessions.settings.snapshots.model_copy(update={"every_hours": 1e-9, "newest": 0, "days": 0})
    settings, seen = sessions.settings.model_copy(update={"snapshots": policy}), list[Kind]()

    def look() -> None:
        snapshot_schedule.mind(settings, sessions.sessions)
        seen.extend(one.kind for one in SnapshotRecords(sessions.database).all())

    before, then = home(sessions, ada), snapshot(sessions, ada)
    happening(sessions, verb, when, look)
    assert back(sessions, ada).moved
    assert Kind.named in seen and {*seen} <= {Kind.named, Kind.safety}  # neither taken nor removed
    assert home(sessions, ada) == then
    assert not differing(before, snapshot(sessions, ada, safety(sessions, ada)), ("saved at the end",))


def test_a_person_who_worked_in_what_came_back_keeps_it(sessions: Fleet, ada: Session) -> None:
    def work() -> None:
        for box in sessions.world.of(ada.name):
            if box.running is Running.running:
                box.used = box.led = True
        sessions.world.homes[str(ada.home)]["typed"] = "meanwhile"
        raise RefitError("the cell failed")

    happening(sessions, "cell", "before", work)
    result = back(sessions, ada)
    assert result.state is State.rolled_back and result.damaged
    assert home(sessions, ada)["typed"] == "meanwhile"
    kept = snapshot(sessions, ada, safety(sessions, ada))
    assert any("worked since" in path for path in kept)
