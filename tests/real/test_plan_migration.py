"""The plan of a migration, made of a session that runs, the wishes of its owner and the settings; and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, timedelta

import pytest

from flows.database import now, open_database
from flows.errors import RefitError
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.carry import Carrier
from flows.migrations.move import State
from flows.migrations.rollout import Action, Decision, Reason
from flows.plan_migration import plan_migration
from flows.policy import Mode, RolloutPolicy
from flows.sessions.lifecycle import Sessions
from flows.sessions.wishes import Wishes
from flows.settings import Settings
from tests.machine import RegistryServer, private_home
from tests.real.variants import LIGHT, light

NAME, PROFILE, RELEASE = "grace", "light-minimal-deb12-py311", "2026a"


@pytest.fixture
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("plans") / "home"
    with private_home(folder, registry_server.port, stop_grace=3.0) as settings:
        yield settings


def test_a_session_moves_when_its_owner_lets_it(
    settings: Settings, registry: Registry, shared: Settings, base: Built
) -> None:
    labels = {"io.refit.profile": PROFILE, "io.refit.release": RELEASE}
    old, new = (light(shared, registry, base, name, "true", labels) for name in ("plan-old", "plan-new"))
    sessions, wishes = Sessions.open(settings), Wishes(open_database(settings.database))
    sessions.create(NAME, PROFILE, RELEASE, old, LIGHT)
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
        carrier = Carrier.open(settings)
        assert carrier.carry_out(pinned).state is State.skipped
        assert sessions.store.session(NAME).image == old

        wishes.change(NAME, "grace", mode=Mode.when_idle, until=None)
        freeze = {"first": date(2026, 1, 1), "last": now().date() + timedelta(days=2), "why": "audit"}
        frozen = settings.model_copy(update={"migration": RolloutPolicy.model_validate({"freezes": [freeze]})})
        assert planned(frozen).reason is Reason.frozen

        sessions.execute(NAME, ["sh", "-c", "nohup sleep 300 >/dev/null 2>&1 &"])
        busy = planned()
        assert (busy.action, busy.reason, busy.at) == (Action.wait, Reason.busy, None)
        assert "sleep 300" in busy.detail
        assert carrier.carry_out(busy).state is State.skipped

        (agreed,) = plan_migration([NAME], new, settings)
        assert carrier.carry_out(agreed).moved
        assert planned().reason is Reason.current
    finally:
        sessions.remove(NAME, purge=True)
