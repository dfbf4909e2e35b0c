"""Homes that are claims keep the contract of homes, with copies by a Pod and with VolumeSnapshots of a double."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.settings.cluster import Snapshots
from flows.sessions.kubernetes import home_snapshots, manifests
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.homes import ClusterHomes
from flows.sessions.kubernetes.snapshot_ways import PART
from flows.sessions.model import HOME, Session
from flows.sessions.podman_only import NotOnKubernetes
from tests.support import cluster_images
from tests.support.cluster import Lab, kubectl
from tests.support.homes_contract import Files, HomesContract
from tests.support.volume_snapshots import CLASS, folder_of, storage_with_snapshots
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
        yield ClusterHomes(Cluster(options))
        assert not kubectl("get", "pods", "-l", f"{manifests.KIND}=home", "-o", "name")
        kubectl("delete", "pvc", "--all", "--timeout=60s")


@pytest.fixture
def session(homes: ClusterHomes, image: str) -> Iterator[Session]:
    number = next(_numbers)
    name, uid = f"contract-{number}", 300_000 + 10 * number
    home = homes.make(name, uid)
    yield Session(name, "p", "2026a", image, uid, home, Path("token"), Access())
    homes.remove(name)


class FilesOfClaims:
    """Implements `homes_contract.Files`: what the user of a session would do, done in the folder of its volume."""

    def _folder(self, claim: Path) -> Path:
        name = claim.name
        wait_until(lambda: kubectl("get", "pvc", name, "-o", "jsonpath={.status.phase}") == "Bound")
        labels = json.loads(kubectl("get", "pvc", name, "-o", "json"))["metadata"]["labels"]
        of_volume = labels.get(manifests.VOLUME) or labels.get(PART)
        return folder_of(name) / ("" if of_volume else HOME.rpartition("/")[2])

    def _uid(self, claim: Path) -> int:
        told = json.loads(kubectl("get", "pvc", claim.name, "-o", "json"))
        return int(told["metadata"]["annotations"][manifests.UID])

    def write(self, folder: Path, path: str, text: str) -> None:
        top, uid = self._folder(folder), self._uid(folder)
        file = top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for each in (file, *file.relative_to(top).parents):
            os.chown(top / each, uid, 0)

    def delete(self, folder: Path, path: str) -> None:
        (self._folder(folder) / path).unlink()

    def all(self, folder: Path) -> dict[str, str]:
        top = self._folder(folder)
        return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}


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
        homes.spare(session, Path("nowhere"), most=10**9)
        homes.remove(session.name)
        kinds = "pods,pvc" + (",volumesnapshots" if homes._cluster.options.storage_class else "")
        wait_until(lambda: not kubectl("get", kinds, "-l", f"{manifests.SESSION}={session.name}", "-o", "name"))
