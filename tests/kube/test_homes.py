"""Homes that are claims keep the contract of homes, with copies by a Pod and with VolumeSnapshots of a double."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from flows.catalog.model import Access
from flows.core.settings.cluster import Snapshots
from flows.sessions.kubernetes import home_snapshots, manifests
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.homes import ClusterHomes
from flows.sessions.model import Session, TokenRef
from flows.sessions.podman_only import NotOnKubernetes
from tests.support import cluster_images
from tests.support.claims import FilesOfClaims
from tests.support.cluster import Lab, kubectl
from tests.support.homes_contract import Files, HomesContract
from tests.support.volume_snapshots import CLASS, storage_with_snapshots
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def image(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a Python."""
    return cluster_images.push("homes", ":", tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", params=["copies", "snapshots"])
def homes(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterHomes]:
    by_storage = request.param == "snapshots"
    options = replace(cluster.options, snapshots=Snapshots.auto, storage_class=CLASS if by_storage else "")
    with storage_with_snapshots(tmp_path_factory.mktemp("snapshots")) if by_storage else nullcontext():
        yield ClusterHomes(Cluster(options), lambda _: "")  # images of the catalog
        assert not kubectl("get", "pods", "-l", f"{manifests.KIND}=home", "-o", "name")
        kubectl("delete", "pvc", "--all", "--timeout=60s")


@pytest.fixture
def session(homes: ClusterHomes, image: str) -> Iterator[Session]:
    number = next(_numbers)
    name, uid = f"contract-{number}", 300_000 + 10 * number
    home = homes.make(name, uid)
    yield Session(name, "p", "2026a", image, uid, home, TokenRef("token"), Access())
    homes.remove(name)


class TestClusterHomes(HomesContract):
    """The whole contract but for clones."""

    @pytest.fixture
    def files(self) -> Files:
        return FilesOfClaims()

    def test_a_clone_begins_with_the_files_of_a_snapshot(self, homes: ClusterHomes, session: Session) -> None:
        """Files would have to change their owner, which needs root: that isn't to be had in a Pod."""
        with pytest.raises(NotOnKubernetes):
            homes.draft_clone(session, "then", session)

    def test_what_is_used_is_what_the_storage_class_can(self, homes: ClusterHomes, cluster: Lab) -> None:
        snapshots = home_snapshots.ClusterSnapshots(homes._cluster)
        assert type(snapshots.way).__name__ == ("VolumeSnapshots" if homes._cluster.options.storage_class else "Copies")

    def test_nothing_is_left_of_a_session_that_goes(self, homes: ClusterHomes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        homes.delta(session, "one")
        homes.spare(session, most=10**9)
        homes.remove(session.name)
        kinds = "pods,pvc" + (",volumesnapshots" if homes._cluster.options.storage_class else "")
        wait_until(lambda: not kubectl("get", kinds, "-l", f"{manifests.SESSION}={session.name}", "-o", "name"))
