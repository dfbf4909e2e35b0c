"""Findings for a Refit that is a Pod of its cluster, and for builders that are Jobs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings, SessionEngine
from flows.services import doctor, doctor_cluster, doctor_home, doctor_programs
from flows.services.doctor_findings import Finding
from flows.sessions.kubernetes import ownership, rights
from flows.sessions.kubernetes.refusals import Right

TEMPLATE = Path(__file__).parents[3] / "deploy" / "builder" / "job.yaml"
SHARED: dict[str, Any] = {
    "registry": "registry.example.com",
    "database_url": "postgresql://refit:hunter2@db.example.com/refit",
    "bind_address": "0.0.0.0",
}


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file by which a Refit knows that it is a Pod."""
    file = tmp_path / "token"
    monkeypatch.setattr(ownership, "_SERVICE_ACCOUNT", file)
    return file


def in_cluster(tmp_path: Path, **more: Any) -> Settings:
    return Settings(engine=SessionEngine.kubernetes, **{"home": tmp_path / "home", **SHARED, **more})


@pytest.mark.parametrize("is_pod", [True, False])
def test_a_pod_needs_neither_root_nor_containers_and_two_programs(tmp_path: Path, token: Path, is_pod: bool) -> None:
    if is_pod:
        token.touch()
    asked = list[str]()

    def check(name: str) -> Callable[[Settings], list[Finding]]:
        def examined(_: Settings) -> list[Finding]:
            asked.append(name)
            return []

        return examined

    settings = in_cluster(tmp_path)
    of_machines = {each.__name__: check(each.__name__) for each in doctor._OF_MACHINES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "_OF_MACHINES", tuple(of_machines.values()))
        doctor.examine(settings, tuple(of_machines.values()))
    assert {*asked} == (set() if is_pod else {"root", "containers", "kernel", "pictures"})
    programs = [finding.thing for finding in doctor_programs.programs(settings)]
    assert (programs == ["buildah", "mmdebstrap"]) is is_pod and {"buildah", "mmdebstrap"} <= {*programs}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_home.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 10**9))
        (disk,) = doctor_home.disk(settings)
    assert disk.ok is is_pod


@pytest.mark.parametrize("is_pod", [True, False])
def test_the_folder_of_a_volume_may_be_its_groups_in_a_pod_but_not_the_home(
    tmp_path: Path, token: Path, is_pod: bool
) -> None:
    if is_pod:
        token.touch()
    settings = in_cluster(tmp_path, home=tmp_path / "volume" / "home")
    settings.home.mkdir(mode=0o700, parents=True)
    settings.home.parent.chmod(0o2775)
    (finding,) = doctor_home.home(settings)
    assert finding.ok is is_pod
    settings.home.chmod(0o770)
    (finding,) = doctor_home.home(settings)
    assert not finding.ok and "others may look into" in finding.seen


def test_a_pod_that_calls_no_builders_says_so_and_a_machine_nothing(tmp_path: Path, token: Path) -> None:
    settings = in_cluster(tmp_path)
    assert [*doctor_cluster.builds(settings)] == []
    token.touch()
    (finding,) = doctor_cluster.builds(settings)
    assert finding.ok and "kubernetes.builder_job" in finding.seen


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({"database_url": ""}, "`database_url`: SQLite"),
        ({"kubernetes": ClusterSettings(builder_job=Path("/nowhere/job.yaml"))}, "/nowhere/job.yaml can't be read"),
    ],
)
def test_what_keeps_jobs_from_building_is_found_before_a_build(
    tmp_path: Path, spoilt: dict[str, Any], named: str
) -> None:
    chosen = {"kubernetes": ClusterSettings(builder_job=TEMPLATE), **spoilt}
    (finding,) = doctor_cluster.builds(in_cluster(tmp_path, **chosen))
    assert not finding.ok and named in finding.seen and finding.hint and "hunter2" not in str(finding)


def test_rights_of_builders_are_asked_for_in_their_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, Right]]()
    lacking = {rights.OF_BUILDERS[2]}

    class Cluster:
        def __init__(self, options: Any) -> None:
            self._namespace = options.namespace

        def may(self, right: Right) -> bool:
            asked.append((self._namespace, right))
            return right not in lacking

        def close(self) -> None:
            asked.append(("closed", right_of_nothing))

    right_of_nothing = Right("", "")
    monkeypatch.setattr(doctor_cluster, "Cluster", Cluster)
    settings = in_cluster(tmp_path, kubernetes=ClusterSettings(builder_job=TEMPLATE), builders=2)
    (finding,) = doctor_cluster.builds(settings)
    assert not finding.ok and finding.seen == "missing in refit-builds: create jobs"
    assert "namespace: refit-builds" in finding.hint and "[create, delete, get, list]" in finding.hint
    assert asked == [*(("refit-builds", each) for each in rights.OF_BUILDERS), ("closed", right_of_nothing)]
    lacking.clear()
    (finding,) = doctor_cluster.builds(settings)
    assert finding.ok and finding.seen == "2 for each build, as Jobs in the namespace refit-builds"
