"""Homes in a cluster are scanned beside the sessions that have them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from flows.compatibility.judge import Verdict
from flows.compatibility.obstacles import obstacles
from flows.compatibility.scan import scan
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions import engines
from flows.sessions.engine import Engine
from flows.sessions.kubernetes import manifests
from flows.sessions.model import Session
from tests.support import cluster_images
from tests.support.cluster import Lab, kubectl
from tests.support.cluster_moves import give_up_namespace, running, settings_for_cluster
from tests.support.scan_contract import ScanContract
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
_NUMBERS = itertools.count(1)
_CALLS = "cat /proc/[0-9]*/cmdline || true"  # some have ended meanwhile


@pytest.fixture(scope="module")
def settings(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    yield settings_for_cluster(tmp_path_factory.mktemp("scans") / "refit")
    give_up_namespace()


@pytest.fixture
def engine(settings: Settings) -> Engine:
    return engines.engine(settings)


@pytest.fixture(scope="module")
def images(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("images")
    return cluster_images.push("scanned", ":", folder), cluster_images.push("scanned-next", ":", folder)


@pytest.fixture
def another(images: tuple[str, str]) -> str:
    return images[1]


@pytest.fixture
def session(settings: Settings, images: tuple[str, str]) -> Iterator[Session]:
    name = f"scanned-{next(_NUMBERS)}"  # what a scan has found is kept for some hours
    with running(settings, name, images[0]) as session:
        yield session


class TestScansInACluster(ScanContract):
    """The whole contract."""


def test_of_a_scan_nothing_stays_in_the_cluster(
    settings: Settings, engine: Engine, session: Session, another: str
) -> None:
    assert scan(settings, engine, session, another).verdict is Verdict.ok
    wait_until(lambda: not kubectl("get", "pods", "-l", f"{manifests.KIND}=trial", "-o", "name"))
    assert not [*settings.folder("rehearsals").iterdir()]
    wait_until(lambda: "read_inside" not in engine.execute(session.container, ["sh", "-c", _CALLS]))


def test_a_home_whose_session_does_not_run_is_not_scanned_and_keeps_nobody(
    settings: Settings, engine: Engine, session: Session, another: str
) -> None:
    engine.stop(session.container, grace=1)
    with pytest.raises(RefitError, match="doesn't run"):
        scan(settings, engine, session, another)
    scans = obstacles(settings, engine, {session.name: (session, another)})
    assert scans.blocked == {} and "doesn't run" in scans.unread[session.name]
