"""The plan of a migration, made of a session that runs, the wishes of its owner and the settings; and what follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from pydantic import SecretStr

from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.policy import Mode, RolloutPolicy
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.notifications.notifier import Notifier
from flows.migrations.planning.rollout import Action, Decision, Reason, RolloutStatus
from flows.migrations.results import Result
from flows.migrations.rollouts.reconcile import PART, reconcile
from flows.migrations.rollouts.session_planner import SessionPlanner, plan_migration
from flows.migrations.rollouts.store import Rollouts
from flows.migrations.steps.shutdown_notice import MOVES_NOW
from flows.sessions.containers.pulls import to_pull
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.ide.login_notice import LEFT
from flows.sessions.lifecycle import Sessions
from flows.sessions.wishes import PreferenceStore
from tests.support.machine import RegistryServer, private_home
from tests.support.receiver import receiver
from tests.support.terminal import Terminal
from tests.support.variants import LIGHT, light

NAME, PROFILE, RELEASE = "grace", "light-minimal-deb12-py311", "2026a"


@pytest.fixture
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("plans") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=3.0, used=False) as settings:
        yield settings


@contextmanager
def at_a_terminal(settings: Settings, sessions: Sessions) -> Iterator[Terminal]:
    """Somebody with a shell in the session."""
    call = [*tools.podman(settings), "exec", "-it", sessions.store.session(NAME).container, "sh"]
    person = Terminal([tools.program(call[0]) or call[0], *call[1:]])
    try:
        person.wait_for("$")
        yield person
    finally:
        person.close()


def check_notices(settings: Settings, sessions: Sessions, planned: Callable[[], Decision], new: str) -> None:
    """Nobody is told who isn't there; a person at a terminal sees it at once, and once."""
    database = open_database(settings.database)
    teller = Notifier(
        settings, sessions, database, lambda old, new: "+humanize 4.17.0", lambda name: None, lambda name: 8
    )
    for _ in range(2):
        assert teller.tell([planned()]) == ()
    with at_a_terminal(settings, sessions) as person:
        assert teller.tell([planned()]) == (NAME,)
        person.wait_for("+humanize 4.17.0")
        person.wait_for(f"refit session updates snooze {NAME} 2h")
        assert teller.tell([planned()]) == ()
        person.shown = ""
        person.type("exec bash -l\n")
        person.wait_for("Changes: +humanize 4.17.0.")  # once more, for whoever logs in
    with receiver() as (url, received):
        outside = settings.model_copy(update={"notify_owners": {"*": (SecretStr(url),)}})
        teller = Notifier(outside, sessions, database, lambda old, new: "-humanize", lambda name: None, lambda name: 8)
        assert teller.tell([replace(planned(), new="sha256:another")]) == (NAME,)
    assert "Changes: -humanize." in received[0]["message"]
    kinds = [event.kind for event in History(database).events(NAME, new) if "notice" in event.kind]
    assert kinds == [Kind.not_noticed, Kind.noticed]


@pytest.mark.long
def test_who_is_busy_is_moved_when_the_work_is_done(
    settings: Settings, registry: Registry, shared: Settings, base: Built
) -> None:
    labels = {"io.refit.profile": PROFILE, "io.refit.release": RELEASE}
    old, new = (light(shared, registry, base, name, "true", labels) for name in ("follow-old", "follow-new"))
    often = settings.model_copy(update={"migration": RolloutPolicy(poll_minutes=0.02, rehearse=False)})
    planning = SessionPlanner(often)
    sessions, executor, seen = planning.sessions, MoveExecutor.open(often), list[str]()
    sessions.create(NAME, PROFILE, RELEASE, old, LIGHT)
    try:
        sessions.execute(NAME, ["sh", "-c", "nohup sleep 300 >/dev/null 2>&1 &"])

        class Migration:
            part = PART

            def plan(self) -> Sequence[Decision]:
                return planning.plan([], new, begin=True)

            def move(self, number: int, lines: Sequence[Decision]) -> list[Result]:
                return [executor.carry_out(line) for line in lines]

            def rest(self, lines: Sequence[Decision], until: datetime | None) -> None:
                if not seen:
                    sessions.execute(NAME, ["pkill", "sleep"])
                seen.extend(line.why for line in lines)

        (result,) = reconcile(Migration(), Machine(), often.migration)
        assert result.moved and "sleep 300" in seen[0]
        (standing,) = Rollouts(planning.database).all().values()
        assert (standing.image, standing.way, standing.canary) == (new, RolloutStatus.running, NAME)
        told = [event.kind for event in History(planning.database).events(image=new)]
        assert told[0] is Kind.rollout_begun and told[-2:] == [Kind.move_ended, Kind.judged]
        (line,) = planning.fleet().sessions
        assert (line.image, line.behind_since, line.why) == (new, None, "")
    finally:
        sessions.remove(NAME, purge=True)


class Machine:
    """The machine's own clock."""

    def now(self) -> datetime:
        return now()

    def wait(self, until: datetime) -> None:
        time.sleep(max(0.0, (until - now()).total_seconds()))


@pytest.mark.long
def test_f17_a_session_moves_when_its_owner_lets_it_and_is_forced_by_no_notice_that_nobody_saw(
    settings: Settings, registry: Registry, shared: Settings, base: Built
) -> None:
    labels = {"io.refit.profile": PROFILE, "io.refit.release": RELEASE}
    old, new = (light(shared, registry, base, name, "true", labels) for name in ("plan-old", "plan-new"))
    sessions, wishes = Sessions.open(settings), PreferenceStore(open_database(settings.database))
    whole = sum(int(layer["size"]) for layer in registry.manifest(settings.repository, new).document["layers"])
    assert to_pull(settings, [new]) == {new: whole}
    sessions.create(NAME, PROFILE, RELEASE, old, LIGHT)
    assert to_pull(settings, [new]) == {new: 0}  # it has the same layers
    try:

        def planned(using: Settings = settings) -> Decision:
            (line,) = plan_migration([], new, using)
            return line

        assert (planned().action, planned().old, planned().new) == (Action.migrate, old, new)
        assert plan_migration([], new, settings, origin=new) == ()

        until = now().date() + timedelta(days=3)
        wishes.change(NAME, "grace", mode=Mode.pin, until=until, time_zone="Europe/Zurich")
        pinned = planned()
        assert (pinned.action, pinned.reason) == (Action.later, Reason.pinned)
        assert pinned.at and pinned.at.astimezone(UTC).date() in (until - timedelta(days=1), until)
        with pytest.raises(RefitError, match="pinned"):
            plan_migration([NAME], new, settings)
        executor = MoveExecutor.open(settings)
        assert executor.carry_out(pinned).state is State.skipped
        assert sessions.store.session(NAME).image == old

        wishes.change(NAME, "grace", mode=Mode.when_idle, until=None)
        freeze = {"first": date(2026, 1, 1), "last": now().date() + timedelta(days=2), "why": "audit"}
        policy = RolloutPolicy.model_validate({"freezes": [freeze], "rehearse": False})
        frozen = settings.model_copy(update={"migration": policy})
        assert planned(frozen).reason is Reason.frozen

        sessions.execute(NAME, ["sh", "-c", "nohup sleep 300 >/dev/null 2>&1 &"])
        busy = planned()
        assert (busy.action, busy.reason, busy.at) == (Action.wait, Reason.busy, None)
        assert "sleep 300" in busy.detail
        assert executor.carry_out(busy).state is State.skipped

        wishes.change(NAME, "grace", mode=Mode.forced_by, until=until)
        assert "no notice was delivered" in planned().detail and planned().deadline is None
        check_notices(settings, sessions, planned, new)
        assert planned().deadline

        (agreed,) = plan_migration([NAME], new, settings)
        with at_a_terminal(settings, sessions) as person:
            assert executor.carry_out(agreed).moved
            person.wait_for(MOVES_NOW)
        assert sessions.execute(NAME, ["sh", "-c", f"ls {LEFT} 2>/dev/null || echo gone"]) == "gone\n"
        assert planned().reason is Reason.current
    finally:
        sessions.remove(NAME, purge=True)
