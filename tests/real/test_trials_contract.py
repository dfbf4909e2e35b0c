"""Trials on this machine keep the contract of trials, with copies of homes in folders."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.model import Session, TokenRef
from flows.sessions.trial import Trials
from tests.support.trials_contract import TrialsContract, maker
from tests.support.variants import LIGHT, light

pytestmark = [pytest.mark.long]
_numbers = itertools.count(1)


class TestPodmanTrials(TrialsContract):
    """The whole contract."""

    @pytest.fixture
    def session(self, shared: Settings, registry: Registry, base: Built) -> Iterator[Session]:
        number, homes = next(_numbers), LocalHomes(shared)
        name, uid = f"tried-{number}", 310_000 + number
        home = homes.make(name, uid)
        (folder_of(home) / "notes").write_text("one")
        command.run(["chown", str(uid), folder_of(home) / "notes"], root=True)
        image = light(shared, registry, base, "trial-runs")
        yield Session(name, "p", "2026a", image, uid, home, TokenRef("token"), LIGHT)
        homes.remove(name)

    @pytest.fixture
    def make(self, shared: Settings) -> Callable[..., Trials]:
        return maker(shared)

    @pytest.fixture
    def ends(self, shared: Settings, registry: Registry, base: Built) -> str:
        return light(shared, registry, base, "trial-ends", "echo broken >&2; exit 3")

    @pytest.fixture
    def copies(self) -> bool:
        return True

    @pytest.fixture
    def left(self, shared: Settings, session: Session) -> Callable[[], list[str]]:
        def there() -> list[str]:
            listed = [*tools.podman(shared), "ps", "--all", "--format", "{{.Names}}"]
            containers = command.run(listed, root=True).stdout.split()
            files = [path.name for kind in ("rehearsals", "running") for path in shared.folder(kind).iterdir()]
            return sorted(name for name in (*containers, *files) if f"{session.name}." in name)

        return there

    @pytest.fixture
    def own_notes(self, session: Session) -> Callable[[], str]:
        return (folder_of(session.home) / "notes").read_text
