from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError, UnknownName
from flows.core.settings.policy import Mode
from flows.migrations.planning.plan import moved, plan, plan_named
from flows.migrations.planning.rollout import Action, Candidate, PlanInput, Reason
from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.model import HomeRef, Session, TokenRef
from flows.sessions.preferences import UpdatePreferences

PROFILE, RELEASE = "jupyter-minimal-deb12-py311", "2026a"
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
ROLLOUT = PlanInput(NOW, {(PROFILE, RELEASE): NEW})


def candidate(
    name: str = "ada",
    *,
    image: str = OLD,
    running: bool = True,
    profile: str = PROFILE,
    obstacle: Reason | None = None,
) -> Candidate:
    session = Session(
        name=name,
        profile=profile,
        release=RELEASE,
        image=image,
        uid=200001,
        home=HomeRef(f"/homes/{name}"),
        token_ref=TokenRef(f"/tokens/{name}"),
        access=Access(),
    )
    return Candidate(session, running, obstacle, seen=Seen(name, Verdict.idle, NOW, True, ()))


def test_a_running_session_on_an_older_image_moves() -> None:
    (decision,) = plan([candidate()], ROLLOUT)
    assert (decision.session, decision.action, decision.old, decision.new) == ("ada", Action.migrate, OLD, NEW)
    assert decision.reason is None


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (candidate(image=NEW), Reason.current),
        (candidate(running=False), Reason.stopped),
        (candidate(profile="vscode-minimal-deb12-py311"), Reason.no_image),
        (candidate(obstacle=Reason.held), Reason.held),
        (candidate(obstacle=Reason.unfinished), Reason.unfinished),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else "",
)
def test_the_others_stay_and_the_reason_is_told(which: Candidate, reason: Reason) -> None:
    (decision,) = plan([which], ROLLOUT)
    assert (decision.action, decision.reason) == (Action.skip, reason)
    with pytest.raises(RefitError) as refused:
        plan_named("ada", [which], ROLLOUT)
    assert reason.text in refused.value.what


def test_a_plan_names_every_session_once_in_order() -> None:
    decisions = plan([candidate("eve"), candidate("ada"), candidate("bob", running=False)], ROLLOUT)
    assert [decision.session for decision in decisions] == ["ada", "bob", "eve"]


def test_a_stopped_session_on_the_newest_image_is_current() -> None:
    (decision,) = plan([candidate(image=NEW, running=False)], ROLLOUT)
    assert decision.reason is Reason.current


def test_a_named_session_is_decided_like_any_other() -> None:
    sessions = [candidate("ada"), candidate("eve")]
    named = plan_named("eve", sessions, ROLLOUT)
    assert (named.session, named.action, named.old, named.new) == ("eve", Action.migrate, OLD, NEW)


def test_who_names_a_session_agrees_for_it_unless_it_is_pinned() -> None:
    asks = replace(candidate(), wish=UpdatePreferences(mode=Mode.ask), seen=None)
    assert plan([asks], ROLLOUT)[0].reason is Reason.ask
    assert plan_named("ada", [asks], ROLLOUT).action is Action.migrate
    pinned = replace(asks, wish=UpdatePreferences(mode=Mode.pin, until=date(2026, 12, 1)))
    with pytest.raises(RefitError, match="pinned") as refused:
        plan_named("ada", [pinned], ROLLOUT)
    assert "refit session updates mode ada when-idle" in refused.value.hint


def test_a_name_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        plan_named("adda", [candidate("ada")], ROLLOUT)
    assert "'ada'" in refused.value.hint


def test_a_deleted_session_is_told_from_one_that_never_was() -> None:
    with pytest.raises(RefitError, match="was deleted") as refused:
        plan_named("ada", [], ROLLOUT, deleted=["ada"])
    assert "refit session create ada" in refused.value.hint


def test_a_missing_image_says_how_to_make_it() -> None:
    with pytest.raises(RefitError) as refused:
        plan_named("ada", [candidate()], replace(ROLLOUT, targets={}))
    assert RELEASE in refused.value.hint


IDE = Access(port=8888, health="/api", own_paths=("/.cache/",))


def test_a_session_that_moves_takes_over_how_the_new_image_is_reached() -> None:
    session = candidate().session
    ide = replace(session, access=IDE)
    next_ide = IDE.model_copy(update={"port": 9999, "own_paths": ()})
    assert moved(ide, NEW, next_ide) == replace(ide, image=NEW, generation=2, access=next_ide)
    assert moved(ide, NEW, None) == replace(ide, image=NEW, generation=2)


@pytest.mark.parametrize(("had", "gets"), [(Access(), IDE), (IDE, Access())], ids=["gets one", "loses it"])
def test_a_session_never_gets_or_loses_an_ide_by_a_move(had: Access, gets: Access) -> None:
    session = replace(candidate().session, access=had)
    with pytest.raises(RefitError, match="can't be moved") as refused:
        moved(session, NEW, gets)
    assert "refit session rm ada" in refused.value.hint
