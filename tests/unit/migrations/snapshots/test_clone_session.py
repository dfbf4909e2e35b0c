"""Sessions that begin as copies of others, which are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.core.settings.cluster import SessionEngine
from flows.core.settings.policy import RolloutPolicy
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.rehearsals.rehearsal import Rehearsal
from flows.migrations.snapshots import clone_session, snapshot_actions
from flows.migrations.snapshots.clone_session import Wish, clone, fetch, remove_killed
from flows.publishing.checks import Finding
from flows.sessions.model import IllegalName, Running, Session
from flows.sessions.packages.store import PackageStore
from flows.sessions.podman_only import NotOnKubernetes
from flows.sessions.snapshots.model import Kind
from flows.sessions.store import NameTaken, Store
from tests.support.simulated.fleet import Fleet, fleet
from tests.support.simulated.world import Killed, Point, World, nothing

P = ParamSpec("P")
T = TypeVar("T")


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "home") as simulated, simulated.in_charge():
        yield simulated


@pytest.fixture
def ada(sessions: Fleet, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr("flows.sessions.tokens.FileTokens.make", lambda *_: None)
    ada = sessions.add(1, sessions.image("old"))
    sessions.sessions.store.give_home(ada.name, "ada")
    return ada


def home(sessions: Fleet, name: str) -> dict[str, str]:
    content = sessions.world.homes[str(sessions.home(name))]
    return {path: text for path, text in content.items() if not path.startswith(".cache")}


def test_a_clone_runs_beside_the_session_that_goes_on(sessions: Fleet, ada: Session) -> None:
    before = home(sessions, ada.name)
    made = clone(sessions.settings, ada.name, Wish("ada2"), "ada")
    assert home(sessions, "ada2") == before == home(sessions, ada.name)
    assert made.uid != ada.uid and made.token_ref != ada.token_ref and made.path == "/session/ada2"
    assert (made.image, made.profile, made.gpus, made.generation) == (ada.image, ada.profile, 0, 1)
    assert sessions.sessions.store.owners()["ada2"] == "ada"
    assert [box.running for name in (ada.name, "ada2") for box in sessions.world.of(name)] == [Running.running] * 2
    assert not sessions.world.snapshots and not sessions.world.stops[ada.container]


def test_it_may_begin_with_a_snapshot(sessions: Fleet, ada: Session) -> None:
    snapshot_actions.take(sessions.sessions, ada.name, "ada", called="then")
    then = home(sessions, ada.name)
    with sessions.world.person():
        sessions.world.work(ada.name, "worked since")
    clone(sessions.settings, ada.name, Wish("ada2", snapshot="then"), "ada", owner="bob")
    assert home(sessions, "ada2") == then != home(sessions, ada.name)
    assert len(sessions.world.snapshots) == 1 and sessions.sessions.store.owners()["ada2"] == "bob"
    with sessions.world.person():
        sessions.sessions.remove("ada2", purge=True)
    assert home(sessions, ada.name) and clone(sessions.settings, ada.name, Wish("ada2"), "ada")


def test_where_sessions_run_on_kubernetes_it_refuses_before_a_snapshot_is_taken(sessions: Fleet, ada: Session) -> None:
    settings = sessions.settings.model_copy(update={"engine": SessionEngine.kubernetes})
    for call in (
        lambda: clone(settings, ada.name, Wish("ada2"), "ada"),
        lambda: fetch(settings, ada.name, Wish("ada2")),
    ):
        with pytest.raises(NotOnKubernetes, match="Clones of sessions"):
            call()
    assert not sessions.world.snapshots and not snapshot_actions.all_of(sessions.sessions, ada)


def test_a_name_that_is_taken_or_cant_be_changes_nothing(sessions: Fleet, ada: Session) -> None:
    bob = sessions.add(2, ada.image)
    with pytest.raises(NameTaken):
        clone(sessions.settings, ada.name, Wish(bob.name), "ada")
    with sessions.world.person():
        sessions.sessions.remove(bob.name)
    before = home(sessions, bob.name)
    with pytest.raises(RefitError, match="a home 's2'"):
        clone(sessions.settings, ada.name, Wish(bob.name), "ada")
    assert home(sessions, bob.name) == before
    with pytest.raises(IllegalName):
        clone(sessions.settings, ada.name, Wish("../x"), "ada")
    with pytest.raises(UnknownName):
        clone(sessions.settings, ada.name, Wish("ada2", snapshot="none"), "ada")
    with pytest.raises(UnknownName):
        clone(sessions.settings, "nobody", Wish("ada2"), "ada")


@pytest.mark.parametrize(("verb", "when"), [("clone", "middle"), ("finish", "before"), ("clone", "before")])
def test_where_it_fails_nothing_is_left(sessions: Fleet, ada: Session, verb: str, when: str) -> None:
    def fail(point: Point) -> None:
        if (point.verb, point.when) == (verb, when):
            raise RefitError("it failed")

    sessions.world.meanwhile = fail
    sessions.world.by_hand, before = False, home(sessions, ada.name)
    with pytest.raises(RefitError):
        clone(sessions.settings, ada.name, Wish("ada2"), "ada")
    store = sessions.sessions.store
    assert store.find("ada2") is None and not store.has_home("ada2") and home(sessions, ada.name) == before


@pytest.mark.parametrize(("verb", "when"), [("clone", "middle"), ("clone", "after"), ("finish", "before")])
def test_a_process_that_is_killed_leaves_the_session_as_it_was(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    def kill(point: Point) -> None:
        if (point.verb, point.when) == (verb, when):
            sessions.world.alive = False
            raise Killed

    sessions.world.meanwhile = kill
    before = home(sessions, ada.name)
    with pytest.raises(Killed):
        clone(sessions.settings, ada.name, Wish("ada2"), "ada")
    sessions.world.alive = True
    assert home(sessions, ada.name) == before and str(sessions.home("ada2")) not in sessions.world.homes
    assert remove_killed(sessions.sessions) == ("ada2",) and remove_killed(sessions.sessions) == ()
    assert sessions.sessions.store.find("ada2") is None and not sessions.sessions.store.has_home("ada2")
    assert home(sessions, ada.name) == before
    sessions.world.meanwhile = lambda _: None
    assert clone(sessions.settings, ada.name, Wish("ada2"), "ada").name == "ada2"


@pytest.mark.parametrize("fails", [False, True])
def test_killed_at_any_moment_it_is_whole_with_its_packages_or_gone(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    for kind, verb in ((Store, "add"), (Store, "forget"), (Store, "forget_home"), (PackageStore, "copy")):
        monkeypatch.setattr(kind, verb, mortal(sessions.world, getattr(kind, verb)))
    packages = sessions.sessions.packages.store
    packages.begin(ada.name, ["jq"], "ada")
    packages.finish(ada.name, ["jq"], "ada")
    before, store = home(sessions, ada.name), sessions.sessions.store
    died = list[Point]()
    while Point("finish", "ada2", "after") not in died and len(died) < 200:
        sessions.world.meanwhile = killer(sessions.world, len(died), fails, died)
        outcome = attempt(sessions, ada)
        sessions.world.alive, sessions.world.meanwhile = True, nothing
        if not isinstance(outcome, Killed):
            break
        remove_killed(sessions.sessions)
        assert not sessions.sessions.homes.drafts()
        if store.find("ada2"):
            assert home(sessions, "ada2") == before and packages.names("ada2") == ("jq",), died[-1]
        else:
            assert str(sessions.home("ada2")) not in sessions.world.homes and not packages.of("ada2"), died[-1]
        with sessions.world.person():
            if store.has_home("ada2"):
                sessions.sessions.remove("ada2", purge=True)
    assert isinstance(outcome, RefitError if fails else Killed) and home(sessions, ada.name) == before
    needed = {"clone", "Store.add", "PackageStore.copy", "finish"}
    needed |= {"Store.forget", "remove home", "Store.forget_home"} if fails else set()
    assert needed <= {point.verb for point in died}


def attempt(sessions: Fleet, ada: Session) -> BaseException | None:
    try:
        clone(sessions.settings, ada.name, Wish("ada2"), "ada")
    except (Killed, RefitError) as error:
        return error
    return None


def killer(world: World, after: int, fails: bool, died: list[Point]) -> Callable[[Point], None]:
    """The process is killed when it has passed so many moments; where it `fails`, the home can't be put in place."""
    moments = 0

    def meanwhile(point: Point) -> None:
        nonlocal moments
        moments += 1
        if moments > after:
            died.append(point)
            world.alive = False
            raise Killed
        if fails and (point.verb, point.when) == ("finish", "before"):
            raise RefitError("it failed")

    return meanwhile


def mortal(world: World, work: Callable[P, T]) -> Callable[P, T]:
    """A write to the database before and after which the process may be killed, and which it doesn't do afterwards."""

    def run(*words: P.args, **more: P.kwargs) -> T:
        world.at(work.__qualname__, "ada2")
        result = work(*words, **more)
        world.at(work.__qualname__, "ada2", "after")
        return result

    return run


@pytest.mark.parametrize("when", ["before", "middle", "after"])
def test_a_snapshot_that_is_removed_while_it_is_copied_becomes_no_half_clone(
    sessions: Fleet, ada: Session, when: str
) -> None:
    snapshot_actions.take(sessions.sessions, ada.name, "ada", called="then")
    left = ["then"]

    def remove(point: Point) -> None:
        if (point.verb, point.when) == ("clone", when) and left:
            snapshot_actions.remove(sessions.sessions, ada.name, left.pop(), "ada")

    sessions.world.meanwhile = remove
    before = home(sessions, ada.name)
    with pytest.raises((RefitError, KeyError)):  # a copy of what isn't there fails by itself
        clone(sessions.settings, ada.name, Wish("ada2", snapshot="then"), "ada")
    store = sessions.sessions.store
    assert store.find("ada2") is None and not store.has_home("ada2") and home(sessions, ada.name) == before
    assert not sessions.world.snapshots and str(sessions.home("ada2")) not in sessions.world.homes


def test_a_session_that_begins_to_move_meanwhile_is_no_reason_against_its_clone(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moves(point: Point) -> None:
        if (point.verb, point.when) == ("clone", "after"):
            monkeypatch.setattr(Journal, "last", lambda *_: unfinished)

    assert sessions.executor().carry_out(sessions.to(ada, sessions.image("new"))).moved
    unfinished = replace(sessions.journal.history(ada.name)[-1], state=State.stopped)
    sessions.world.meanwhile = moves
    made = clone(sessions.settings, ada.name, Wish("ada2"), "ada")
    monkeypatch.undo()
    assert sessions.sessions.running(made) is Running.running
    [kept] = snapshot_actions.all_of(sessions.sessions, sessions.sessions.store.session(ada.name))
    assert kept.kind is Kind.unnamed and "ada2" in kept.note


def test_one_that_is_being_made_is_left_alone(sessions: Fleet, ada: Session) -> None:
    seen: list[tuple[str, ...]] = []

    def look(point: Point) -> None:
        if (point.verb, point.when) == ("clone", "after"):
            seen.append(remove_killed(sessions.sessions))

    sessions.world.meanwhile = look
    assert clone(sessions.settings, ada.name, Wish("ada2"), "ada").name == "ada2" and seen == [()]
    assert remove_killed(sessions.sessions) == ()


def test_an_image_that_fails_its_rehearsal_leaves_nothing_unless_forced(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, seen = sessions.image("new"), list[Session]()

    def fail(_: Settings, __: object, made: Session, ___: object) -> Rehearsal:
        seen.append(made)
        return Rehearsal(made.name, made.image, (Finding("ide", False, "nothing answers"),))

    monkeypatch.setattr(
        clone_session, "_pattern", lambda _, __, source, ___: replace(source, image=other, generation=1)
    )
    monkeypatch.setattr(clone_session, "rehearse", fail)
    settings = sessions.settings.model_copy(update={"migration": RolloutPolicy(rehearse=True)})
    sessions.world.by_hand, before = False, home(sessions, ada.name)
    with pytest.raises(RefitError, match="didn't pass its rehearsal") as told, sessions.world.person():
        clone(settings, ada.name, Wish("ada2"), "ada")
    assert told.value.why == "ide: nothing answers" and [one.home for one in seen] == [sessions.home("ada2")]
    store = sessions.sessions.store
    assert store.find("ada2") is None and not store.has_home("ada2") and home(sessions, ada.name) == before
    with sessions.world.person():
        assert clone(settings, ada.name, Wish("ada2", force=True), "ada").image == other
