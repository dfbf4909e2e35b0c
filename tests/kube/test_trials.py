"""Trials in a cluster keep the contract of trials, without a home and with a copy by either way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import pytest

from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.sessions import engines
from flows.sessions.homes.volumes import parts
from flows.sessions.kubernetes import manifests
from flows.sessions.model import Session, TokenRef
from flows.sessions.trial import Trials
from tests.support import cluster_images
from tests.support.claims import FilesOfClaims
from tests.support.cluster import NAMESPACE, Lab, kubectl
from tests.support.cluster_moves import give_up_namespace, settings_for_cluster
from tests.support.trials_contract import TrialsContract, maker
from tests.support.volume_snapshots import CLASS, storage_with_snapshots

pytestmark = [pytest.mark.long]
_numbers = itertools.count(1)
KINDS = ["without a home", "copies", "snapshots"]


@pytest.fixture(scope="module", params=KINDS)
def home_of_refit(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Settings]:
    by_storage, none = request.param == "snapshots", request.param == "without a home"
    options = ClusterSettings(
        namespace=NAMESPACE,
        home_gb=1,
        snapshots=Snapshots.none if none else Snapshots.auto,
        storage_class=CLASS if by_storage else "",
    )
    folder = tmp_path_factory.mktemp("trials")
    with storage_with_snapshots(folder) if by_storage else nullcontext():
        yield settings_for_cluster(folder / "refit", kubernetes=options)
        give_up_namespace()


@pytest.fixture(scope="module")
def images(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("images")
    pushed = {"trial-runs": ":", "trial-ends": "echo broken >&2; exit 3"}
    return {name: cluster_images.push(name, before, folder) for name, before in pushed.items()}


@pytest.fixture
def session(home_of_refit: Settings, images: dict[str, str]) -> Iterator[Session]:
    homes, number = engines.homes(home_of_refit), next(_numbers)
    name, uid = f"tried-{number}", 300_000 + 10 * number
    home = homes.make(name, uid)
    FilesOfClaims().write(home, "notes", "one")
    yield Session(name, "p", "2026a", images["trial-runs"], uid, home, TokenRef("token"), cluster_images.SERVER)
    homes.remove(name)


class TestClusterTrials(TrialsContract):
    """The whole contract."""

    @pytest.fixture
    def make(self, home_of_refit: Settings) -> Callable[..., Trials]:
        return maker(home_of_refit)

    @pytest.fixture
    def ends(self, images: dict[str, str]) -> str:
        return images["trial-ends"]

    @pytest.fixture
    def copies(self, home_of_refit: Settings) -> bool:
        return home_of_refit.kubernetes.snapshots is not Snapshots.none and not home_of_refit.kubernetes.storage_class

    @pytest.fixture
    def left(self, session: Session) -> Callable[[], list[str]]:
        own = {f"persistentvolumeclaim/{part.ref}" for part in parts(session)}
        return partial(_left, session.name, own)

    @pytest.fixture
    def own_notes(self, session: Session) -> Callable[[], str]:
        return lambda: FilesOfClaims().all(session.home)["notes"]


def _left(session: str, own: set[str]) -> list[str]:
    """The objects of a session but its claims."""
    kinds = "pods,persistentvolumeclaims" + (",volumesnapshots" if _has_snapshots() else "")
    told = kubectl("get", kinds, "-l", f"{manifests.SESSION}={session}", "-o", "name").split()
    return sorted({*told} - own)


def _has_snapshots() -> bool:
    return "volumesnapshots" in kubectl("get", "crd", "-o", "name", "--ignore-not-found")
