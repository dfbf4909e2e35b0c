"""Volumes that sessions share, on a real cluster whose class for hostPath takes any mode of access, and on classes
that don't.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings
from flows.core.settings.policy import RolloutPolicy
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.sessions import engines, reconfigure
from flows.sessions.homes.volumes import read_wanted
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from tests.support import cluster_images, variants
from tests.support.cluster import NAMESPACE, REPOSITORY, Lab, kubectl
from tests.support.cluster_moves import give_up_namespace, settings_for_cluster
from tests.support.moving import carry_out, to
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
PROFILE = "light-minimal-deb12-py311"
# In its rehearsal it tries to write to what is shared; it ends where that is done to it.
TRIES = 'if [ "$REFIT_REHEARSAL" ]; then ls /scratch/deep && ! touch /scratch/rehearsed || exit 3; fi'
SPOILS = '[ "$REFIT_REHEARSAL" ] || { rm /scratch/deep/mine; exit 3; }'


@pytest.fixture(scope="module")
def images(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("images")
    programs = {"shares": ":", "tries": TRIES, "spoils": SPOILS}
    return {name: cluster_images.push(name, before, folder) for name, before in programs.items()}


@pytest.fixture(scope="module")
def settings(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    settings = settings_for_cluster(
        tmp_path_factory.mktemp("shared") / "refit",
        kubernetes=ClusterSettings(namespace=NAMESPACE, home_gb=1),
        migration=RolloutPolicy(rehearse=True, keep_hours=0),
    )
    registry = Registry(settings)
    for digest in images.values():
        variants.sign(settings, registry, registry.manifest(REPOSITORY, digest), {})
    yield settings
    give_up_namespace()


@pytest.fixture
def sessions(settings: Settings) -> Iterator[Sessions]:
    sessions = Sessions.open(settings)
    yield sessions
    for status in sessions.all():
        sessions.remove(status.session.name, purge=True)
    kubectl("delete", "pvc", "-l", "io.refit.kind=shared", "--timeout=60s")


def create(sessions: Sessions, name: str, image: str, *volumes: str) -> Session:
    wanted = read_wanted(volumes)
    return sessions.create(name, PROFILE, "2026a", image, cluster_images.SERVER, volumes=wanted)


def run(sessions: Sessions, name: str, script: str) -> str:
    """All that a script says, whether or not it fails."""
    return sessions.execute(name, ["sh", "-c", f"{{ {script}; }} 2>&1; true"])


def test_sessions_write_what_others_make_and_no_move_of_one_changes_that(
    sessions: Sessions, settings: Settings, images: dict[str, str]
) -> None:
    ref = sessions.homes.make_shared("scratch")
    with pytest.raises(RefitError, match="already"):
        sessions.homes.make_shared("scratch")
    create(sessions, "ada", images["shares"], "scratch:/scratch")
    create(sessions, "ben", images["shares"], "scratch:/scratch:ro")
    create(sessions, "cleo", images["shares"], "scratch:/scratch")
    run(sessions, "ada", "umask 022; mkdir /scratch/deep; echo one >/scratch/deep/mine")
    assert run(sessions, "cleo", "echo two >>/scratch/deep/mine; cat /scratch/deep/mine") == "one\ntwo\n"
    assert run(sessions, "ben", "cat /scratch/deep/mine") == "one\ntwo\n"
    assert "written" not in run(sessions, "ben", "touch /scratch/x && echo written")
    # No user of a session can lock the others out.
    assert "shut" not in run(sessions, "ada", "chmod 700 /scratch && echo shut")

    executor = MoveExecutor.open(settings)
    result = carry_out(executor, to(sessions, "ada", images["tries"]))
    assert result.state is State.cleaned, result
    assert run(sessions, "ada", "ls /scratch; cat /scratch/deep/mine") == "deep\none\ntwo\n"
    result = carry_out(executor, to(sessions, "ada", images["spoils"]))
    assert result.state is State.rolled_back, result
    # Others may have written there since, so that a way back brings nothing back.
    assert run(sessions, "cleo", "ls /scratch/deep") == ""

    with pytest.raises(RefitError, match="ada, ben, cleo have it"):
        reconfigure.remove_volume(sessions, "scratch", ref)
    sessions.remove("ada", purge=True)
    assert run(sessions, "cleo", "ls /scratch") == "deep\n"
    for name in ("ben", "cleo"):
        sessions.remove(name, purge=True)
    reconfigure.remove_volume(sessions, "scratch", ref)
    assert not sessions.homes.shared() and not kubectl("get", "pvc", "-l", "io.refit.kind=shared", "-o", "name")


@contextmanager
def storage_class(name: str, **more: object) -> Iterator[None]:
    """A class of the cluster's own provisioner."""
    metadata = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    made = {**metadata, "provisioner": "kubernetes.io/host-path", **more}
    kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        yield
    finally:
        kubectl("delete", "storageclass", name)


def of_class(settings: Settings, name: str, **more: object) -> Settings:
    chosen = ClusterSettings(namespace=NAMESPACE, home_gb=1, shared_storage_class=name, **more)  # type: ignore[arg-type]
    return settings.model_copy(update={"kubernetes": chosen})


@pytest.mark.parametrize(
    ("more", "minutes"),
    [
        # The provisioner refuses options that it can't have, and says so by an event.
        ({"mountOptions": ["noatime"]}, 5.0),
        ({"provisioner": "nobody.example.com"}, 0.05),
    ],
    ids=["refused", "never answered"],
)
def test_a_class_that_makes_none_is_refused_with_the_words_of_the_cluster(
    settings: Settings, more: Mapping[str, object], minutes: float
) -> None:
    with storage_class("one-node", **more):
        homes = engines.homes(of_class(settings, "one-node", start_minutes=minutes))
        with pytest.raises(RefitError, match="one-node has no volume that many nodes can write to") as error:
            homes.make_shared("scratch")
        assert "The claim refit-shared-scratch is Pending; its storage class: one-node." in error.value.why
        assert "ProvisioningFailed" in error.value.why or minutes < 1
        assert not homes.shared() and not kubectl("get", "pvc", "-l", "io.refit.kind=shared", "-o", "name")


def test_a_class_that_waits_for_the_first_pod_has_its_volume_with_the_first_session(
    sessions: Sessions, settings: Settings, images: dict[str, str]
) -> None:
    with storage_class("late", volumeBindingMode="WaitForFirstConsumer"):
        engines.homes(of_class(settings, "late")).make_shared("scratch")
        create(sessions, "ada", images["shares"], "scratch:/scratch")
        assert run(sessions, "ada", "echo kept >/scratch/x; cat /scratch/x") == "kept\n"
        sessions.remove("ada", purge=True)


def claim_of_an_administrator(name: str, mode: str) -> None:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    kubectl("apply", "-f", "-", stdin=json.dumps(made))
    kubectl("label", "pvc", name, "io.refit.kind=shared", "io.refit.volume=models")
    wait_until(lambda: kubectl("get", "pvc", name, "-o", "jsonpath={.status.phase}") == "Bound")


def test_the_claim_of_an_administrator_is_shared_as_far_as_it_can_be(
    sessions: Sessions, images: dict[str, str]
) -> None:
    claim_of_an_administrator("team-models", "ReadWriteOnce")
    with pytest.raises(RefitError, match="The volume 'models' can't be shared") as error:
        create(sessions, "ada", images["shares"], "models:/models")
    assert "team-models can be had as ReadWriteOnce alone" in error.value.why
    kubectl("delete", "pvc", "team-models", "--timeout=60s")

    claim_of_an_administrator("team-models", "ReadOnlyMany")
    with pytest.raises(RefitError, match="can't be shared by sessions that write") as error:
        create(sessions, "ada", images["shares"], "models:/models")
    assert "models:/models:ro" in error.value.hint
    session = create(sessions, "ada", images["shares"], "models:/models:ro")
    assert session.volumes[0].ref == "team-models" and session.volumes[0].shared
    assert "written" not in run(sessions, "ada", "touch /models/x && echo written")
    sessions.remove("ada", purge=True)
    with pytest.raises(RefitError, match="Refit hasn't made the claim team-models"):
        reconfigure.remove_volume(sessions, "models", session.volumes[0].ref)
