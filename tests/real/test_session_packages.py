"""System packages that an operator installs in a real session: they are there at once, and again after a move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.core.settings.policy import MissingPackages, RolloutPolicy
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.packages.install import Unvouched, run_inside
from flows.sessions.packages.model import NoIndex
from flows.sessions.reconfigure import forget_packages, install_packages
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import carry_out, opened, to
from tests.support.variants import LIGHT, light

NAME = "ira"
# apt lets it run as root wherever packages are installed.
_HOOK = """
DPkg::Post-Invoke {
  "ls -A /home /home/dev /run/secrets >/var/tmp/seen 2>&1; grep CapEff /proc/self/status >>/var/tmp/seen";
};
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("packages") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=3.0) as settings:
        yield settings


@pytest.fixture
def sessions(settings: Settings) -> Iterator[Sessions]:
    with opened(settings, NAME) as sessions:
        yield sessions


@pytest.fixture
def session(sessions: Sessions, shared: Settings, registry: Registry, base: Built) -> Session:
    image = light(shared, registry, base, "installed")
    made = sessions.create(NAME, "light-minimal-deb12-py311", "2026a", image, LIGHT)
    sessions.execute(NAME, ["sh", "-euc", "echo mine >diary"])
    return made


def by_root(settings: Settings, session: Session, text: str) -> str:
    call = ["exec", "--privileged", "--user", "0:0", session.container, "sh", "-euc", text]
    return command.run([*tools.podman(settings), *call], root=True, limit=600).stdout


def has(sessions: Sessions, package: str) -> bool:
    said = sessions.execute(NAME, ["sh", "-c", f"dpkg-query -W -f '${{Status}}' {package} 2>/dev/null || true"])
    return said.endswith(" installed")


def test_what_an_operator_installs_is_there_at_once_and_after_a_move(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    by_root(settings, session, f"printf '%s' '{_HOOK}' >/etc/apt/apt.conf.d/99seen")
    sessions.execute(NAME, ["sh", "-c", "sleep 3000 </dev/null >/dev/null 2>&1 &"])
    running = sessions.execute(NAME, ["pgrep", "-x", "sleep"])
    outcome = install_packages(sessions, settings, NAME, ["tree", "refit-none"], "root")
    assert outcome.there.keys() == {"tree"} and "Unable to locate" in outcome.missing["refit-none"]
    assert (
        "diary" in sessions.execute(NAME, ["tree", "."]) and sessions.execute(NAME, ["pgrep", "-x", "sleep"]) == running
    )
    seen = by_root(settings, session, "cat /var/tmp/seen")
    assert "diary" not in seen and "CapEff:\t0000000000000000" not in seen
    assert int(seen.rpartition("CapEff:")[2], 16) & (1 << 21 | 1 << 12) == 0  # neither SYS_ADMIN nor NET_ADMIN
    assert [package.name for package in sessions.packages.store.of(NAME)] == ["tree"]

    sessions.execute(NAME, ["pkill", "-x", "sleep"])  # or it is busy
    executor = MoveExecutor.open(settings.model_copy(update={"migration": RolloutPolicy()}))  # with a rehearsal
    result = carry_out(executor, to(sessions, NAME, light(shared, registry, base, "the next")))
    assert result.moved, result.reason
    assert has(sessions, "tree")
    notes = {e.step: e.note for e in executor.journal.entries(executor.journal.latest()[NAME]) if e.note}
    assert notes["create"] == "installed again: tree" and "rehearsed in" in notes["rehearse"]

    sessions.stop(NAME)
    sessions.engine.remove(sessions.store.session(NAME).container)
    sessions.start(NAME)
    assert has(sessions, "tree")  # a container that is made anew at a start has it, too
    assert forget_packages(sessions, NAME, ["tree"], "root") == ("tree",)
    assert has(sessions, "tree")


def test_a_package_that_is_gone_keeps_the_session_or_is_told_as_the_policy_says(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    store = sessions.packages.store
    install_packages(sessions, settings, NAME, ["tree"], "root")
    store.begin(NAME, ["refit-gone"], "root")
    store.finish(NAME, ["refit-gone"], "root")
    decision = to(sessions, NAME, light(shared, registry, base, "without"))
    stayed = MoveExecutor.open(settings).carry_out(decision)
    assert stayed.state is State.deferred and "refit-gone (Unable to locate" in stayed.reason
    assert "refit session uninstall ira refit-gone" in stayed.reason
    assert sessions.that_runs(NAME) == session

    migration = settings.migration.model_copy(update={"missing_packages": MissingPackages.go_on})
    executor = MoveExecutor.open(settings.model_copy(update={"migration": migration}))
    result = carry_out(executor, decision)
    assert result.moved, result.reason
    assert has(sessions, "tree") and not has(sessions, "refit-gone")
    (told,) = (
        e.note for e in executor.journal.entries(executor.journal.latest()[NAME]) if e.step == "clean" and e.note
    )
    assert "System packages that this image can't have: refit-gone" in told


def test_a_mirror_that_is_away_installs_nothing_and_keeps_nothing_on_record(
    sessions: Sessions, session: Session, settings: Settings
) -> None:
    away = settings.model_copy(update={"apt_proxy": "http://127.0.0.1:9"})
    with pytest.raises(NoIndex, match="doesn't answer"):
        install_packages(sessions, away, NAME, ["tree"], "root")
    assert not sessions.packages.store.of(NAME) and not has(sessions, "tree")
    outcome = install_packages(sessions, settings, NAME, ["tree"], "root")
    assert outcome.there.keys() == {"tree"} and has(sessions, "tree")


def test_no_program_of_a_persons_own_image_runs_as_root(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    install_packages(sessions, settings, NAME, ["tree"], "root")
    own = light(shared, registry, base, "own", labels={OWNER_LABEL: "mallory"})
    stayed = MoveExecutor.open(settings).carry_out(to(sessions, NAME, own))
    assert stayed.state is State.deferred and "of mallory's own recipe" in stayed.reason

    migration = settings.migration.model_copy(update={"missing_packages": MissingPackages.go_on})
    result = carry_out(MoveExecutor.open(settings.model_copy(update={"migration": migration})), to(sessions, NAME, own))
    assert result.moved and not has(sessions, "tree"), result.reason
    outcome = install_packages(sessions, settings, NAME, ["hello"], "root")
    assert not outcome.there and "mallory" in outcome.missing["hello"] and not has(sessions, "hello")
    with pytest.raises(Unvouched):
        run_inside(settings, sessions.store.session(NAME).container, ["true"])
