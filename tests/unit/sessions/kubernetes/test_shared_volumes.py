"""Volumes that sessions share: what a claim or its class says of them, and how Pods have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.homes.group_access import SHARE_FOLDER, default_list
from flows.sessions.homes.volumes import Wanted
from flows.sessions.kubernetes import home_pods, manifests, shared_volumes, trial_pods
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict, StillWaiting
from flows.sessions.kubernetes.home_pods import HomePods
from flows.sessions.kubernetes.homes import ClusterHomes
from flows.sessions.kubernetes.manifests import KIND, UID, VOLUME
from flows.sessions.kubernetes.shared_volumes import OPEN, SharedVolumes
from flows.sessions.model import HomeRef, Session, Volume
from flows.sessions.podman_only import NotOnKubernetes
from tests.support.pods import OPTIONS, SESSION

DATA = Volume("data", "/data", HomeRef("refit-shared-data/all"), shared=True)
MANY, ONE, READERS = "ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany"
SHARING = replace(SESSION, volumes=(DATA,))


class Api:
    """The claims of a namespace, and events about them; a new one gets this status."""

    def __init__(self, status: Mapping[str, Any], reason: str = "", binding: str = "Immediate") -> None:
        self.options = replace(OPTIONS, start_seconds=0.05, shared_class="files")
        self._status, self._reason, self._binding = status, reason, binding
        self.claims = dict[str, dict[str, Any]]()
        self.follower = None

    def list(self, resource: str, **labels: str) -> list[dict[str, Any]]:
        if resource == "events":
            about = {"kind": "PersistentVolumeClaim", "name": "refit-shared-data"}
            event = {"reason": self._reason, "message": "no", "type": "Warning", "involvedObject": about}
            return [event] if self._reason else []
        assert labels.pop(KIND) == "shared"
        return deepcopy(
            [
                each
                for each in self.claims.values()
                if all(
                    each["metadata"]["labels"].get(key, "-") == (value or each["metadata"]["labels"].get(key))
                    for key, value in labels.items()
                )
            ]
        )

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        return deepcopy(self.claims.get(name))

    def create(self, resource: str, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if name in self.claims:
            raise Conflict("It is there.")
        self.claims[name] = {**deepcopy(dict(manifest)), "status": dict(self._status)}

    def patch(self, resource: str, name: str, change: Mapping[str, Any], kind: str = "") -> None:
        self.claims[name]["metadata"].setdefault("annotations", {}).update(change["metadata"]["annotations"])

    def delete(self, resource: str, name: str) -> None:
        self.claims.pop(name)

    def wait(self, resource: str, name: str, until: Callable[[Any], bool], seconds: float, told: str) -> None:
        if not until(self.find(resource, name)):
            raise StillWaiting(told)

    def of_all(self, group: str, resource: str) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": "files"}, "volumeBindingMode": self._binding}]}

    def add(self, *modes: str, name: str = "data", own: bool = False) -> None:
        """Let there be a claim, of an administrator's or of Refit's own."""
        metadata: dict[str, Any] = {"name": name, "labels": {KIND: "shared", VOLUME: name}}
        metadata |= {"annotations": {UID: "65534"}} if own else {}
        status = {"phase": "Bound", "accessModes": [*modes]}
        self.claims[name] = {"metadata": metadata, "spec": {"accessModes": [MANY]}, "status": status}


BOUND = {"phase": "Bound", "accessModes": [MANY]}


def volumes(api: Api, maker: str | None = "") -> SharedVolumes:
    return SharedVolumes(cast(Cluster, api), lambda _: maker)


def test_a_volume_is_a_folder_in_a_claim_that_many_nodes_can_have() -> None:
    api = Api(BOUND)
    assert volumes(api).make("data") == DATA.ref == volumes(api).all()["data"]
    spec = api.claims["refit-shared-data"]["spec"]
    assert spec["accessModes"] == [MANY] and spec["storageClassName"] == "files"
    with pytest.raises(RefitError, match="There is a volume 'data' already"):
        volumes(api).make("data")


@pytest.mark.parametrize(
    ("api", "said"),
    [
        (Api({"phase": "Pending"}, "ProvisioningFailed"), "Pending"),
        (Api({"phase": "Pending"}), "Pending"),
        (Api({"phase": "Bound", "accessModes": [ONE]}), "can be had as ReadWriteOnce alone"),
    ],
    ids=["refused by its provisioner", "never bound", "bound to another one"],
)
def test_a_class_without_such_volumes_is_refused_and_nothing_is_left(api: Api, said: str) -> None:
    with pytest.raises(RefitError, match="The storage class files has no volume that many nodes can write to") as error:
        volumes(api).make("data")
    assert said in error.value.why and "kubernetes.shared_storage_class" in error.value.hint
    assert not api.claims


@pytest.mark.parametrize(
    "api",
    [Api({"phase": "Pending"}, binding="WaitForFirstConsumer"), Api({"phase": "Pending"}, "WaitForFirstConsumer")],
)
def test_a_class_that_waits_for_the_first_pod_is_not_waited_for(api: Api) -> None:
    assert volumes(api).make("data") == DATA.ref and api.claims


@pytest.mark.parametrize(
    ("modes", "read_only", "hint"),
    [
        ((MANY,), False, None),
        ((MANY, ONE), True, None),
        ((READERS,), True, None),
        ((READERS, ONE), False, "data:/data:ro"),
        ((ONE,), False, "share a claim with ReadWriteMany"),
        ((ONE,), True, "share a claim with ReadWriteMany"),
        (("ReadWriteOncePod",), False, "share a claim with ReadWriteMany"),
    ],
)
def test_a_claim_of_an_administrator_is_shared_as_its_modes_allow(
    modes: tuple[str, ...], read_only: bool, hint: str | None
) -> None:
    api = Api(BOUND)
    api.add(*modes)
    wanted = Wanted("data", "/data", read_only)
    if hint is None:
        assert volumes(api).mounted(wanted) == Volume("data", "/data", HomeRef("data"), read_only, shared=True)
        return
    with pytest.raises(RefitError, match="The volume 'data' can't be shared") as error:
        volumes(api).mounted(wanted)
    assert hint in error.value.hint and modes[0] in error.value.why


def test_refit_removes_no_claim_of_an_administrator() -> None:
    api = Api(BOUND)
    api.add(MANY)
    homes = ClusterHomes(cast(Cluster, api))
    with pytest.raises(RefitError, match="Refit hasn't made the claim data"):
        homes.remove_volume(HomeRef("data"))
    assert api.claims
    volumes(api).make("own")
    homes.remove_volume(HomeRef("refit-shared-own/all"))
    assert [*api.claims] == ["data"]


def test_a_volume_in_the_home_is_refused() -> None:
    homes = ClusterHomes(cast(Cluster, Api(BOUND)))
    for path in ("/home/dev/models", "/home/dev"):
        with pytest.raises(NotOnKubernetes):
            homes.mounted("ada", Wanted("models", path))


def test_a_name_that_can_be_no_label_is_refused_before_the_cluster_is_asked() -> None:
    homes = ClusterHomes(cast(Cluster, SimpleNamespace(options=OPTIONS)))
    for verb in (homes.make_shared, lambda name: homes.mounted("ada", Wanted(name, "/data")), homes.home_of):
        with pytest.raises(RefitError, match="can't be the name of a"):
            verb("data-")


class Work:
    """The Pod that makes the folder: it keeps whose it was, and may fail."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, error: RefitError | None = None, told: str = "65534 2770\n"
    ) -> None:
        self.uids, self.words, self._error = list[int](), list[str](), error

        @contextmanager
        def mounted(_: HomePods, session: Session, mounts: object) -> Iterator[Any]:
            if self._error:
                raise self._error
            self.uids.append(session.uid)
            yield SimpleNamespace(run=run)

        def run(_: str, *words: str) -> str:
            self.words.extend(words)
            return told

        monkeypatch.setattr(HomePods, "mounted", mounted)


def test_its_folder_is_made_once_and_is_no_session_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    api, work = Api(BOUND), Work(monkeypatch)
    volumes(api).make("data")
    for _ in range(2):
        volumes(api).require(SHARING, DATA)
    assert work.uids == [65534] and work.words[0].endswith("/refit-shared-data/all")
    assert OPEN in api.claims["refit-shared-data"]["metadata"]["annotations"]


def test_a_folder_that_can_t_be_made_is_tried_again_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api({"phase": "Pending"}, binding="WaitForFirstConsumer")
    volumes(api).make("data")
    Work(monkeypatch, ClusterError("It doesn't run.", why="no node"))
    with pytest.raises(RefitError, match="The shared volume 'data' can't be had") as error:
        volumes(api).require(SHARING, DATA)
    assert "no node" in error.value.why and "The claim refit-shared-data is Pending" in error.value.why
    assert OPEN not in api.claims["refit-shared-data"]["metadata"]["annotations"]


@pytest.mark.parametrize(("maker", "why"), [("eve", "eve's own recipe"), (None, "Nobody can tell")])
def test_no_image_of_a_person_s_own_recipe_makes_the_folder_of_all(
    monkeypatch: pytest.MonkeyPatch, maker: str | None, why: str
) -> None:
    api, work = Api(BOUND), Work(monkeypatch)
    volumes(api).make("data")
    with pytest.raises(RefitError, match="the image of 'ada' may not make it") as error:
        volumes(api, maker).require(SHARING, DATA)
    assert why in error.value.why and "--volume data:/data" in error.value.hint
    assert work.uids == [] and OPEN not in api.claims["refit-shared-data"]["metadata"]["annotations"]
    volumes(api).require(SHARING, DATA)
    volumes(api, maker).require(SHARING, DATA)
    assert work.uids == [65534]


@pytest.mark.parametrize("told", ["", "0 2770\n", "65534 755\n", "65534 2770 all\n", "\x1b[2J" * 1000])
def test_a_folder_that_is_not_as_it_was_asked_for_isn_t_open(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    api = Api(BOUND)
    volumes(api).make("data")
    Work(monkeypatch, told=told)
    with pytest.raises(RefitError, match="The shared volume 'data' can't be had") as error:
        volumes(api).require(SHARING, DATA)
    assert "user 65534 with the mode 2770" in error.value.why and "\x1b" not in error.value.why
    assert len(error.value.why) < 500 and "shared_storage_class" in error.value.hint
    assert OPEN not in api.claims["refit-shared-data"]["metadata"]["annotations"]


def test_the_program_that_makes_the_folder_follows_no_link_and_tells_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("elsewhere")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-c", SHARE_FOLDER, str(tmp_path / name), default_list()]
        return subprocess.run(call, capture_output=True, text=True, check=False)

    for _ in range(2):
        assert run("all").stdout.split() == [str(os.geteuid()), "2770"]
    assert run("link").returncode and not run("link").stdout
    assert (tmp_path / "elsewhere").stat().st_mode & 0o7777 == 0o700


def test_one_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Work(monkeypatch)
    with pytest.raises(RefitError, match="The volume 'data' of the session 'ada' is gone"):
        volumes(Api(BOUND)).require(SHARING, DATA)


def pod_of(session: Session) -> dict[str, Any]:
    return dict(manifests.pod(session, OPTIONS, "refit-slot-1")["spec"])


def mount_of(container: Mapping[str, Any], name: str = "volume-data") -> dict[str, Any]:
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == name)
    return dict(mount)


def test_sessions_that_share_have_one_group_and_others_their_own() -> None:
    spec = pod_of(SHARING)
    assert spec["securityContext"]["fsGroup"] == 0
    assert pod_of(SESSION)["securityContext"]["fsGroup"] == SESSION.uid
    beside = home_pods.pod(SHARING, [], "n1", OPTIONS)["spec"]
    assert beside["securityContext"]["fsGroup"] == 0, "a copy would change the group of its home"
    for slot in spec["containers"]:
        assert mount_of(slot) == {"name": "volume-data", "mountPath": "/data", "readOnly": False, "subPath": "all"}
    (claim,) = (each for each in spec["volumes"] if each["name"] == "volume-data")
    assert claim["persistentVolumeClaim"] == {"claimName": "refit-shared-data", "readOnly": False}


def test_a_session_without_any_has_the_shape_that_it_had() -> None:
    own = replace(SESSION, volumes=(Volume("rows", "/rows", HomeRef("refit-volume-ada.rows"), read_only=True),))
    (mount,) = (each for each in pod_of(own)["containers"][0]["volumeMounts"] if each["name"] == "volume-rows")
    assert mount == {"name": "volume-rows", "mountPath": "/rows", "readOnly": True}


@pytest.mark.parametrize("with_home", [True, False])
def test_a_rehearsal_can_t_write_to_it(with_home: bool) -> None:
    copy = replace(SHARING, home=HomeRef("refit-spare"), volumes=(replace(DATA, read_only=True),))
    spec = trial_pods.pod(copy, "ada.1", "", {"config": {}}, OPTIONS, Settings(), with_home=with_home)["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "volume-data")
    mount = mount_of(spec["containers"][0])
    if with_home:
        assert volume["persistentVolumeClaim"] == {"claimName": "refit-shared-data", "readOnly": True}
        assert mount["readOnly"] is True and mount["subPath"] == "all"
    else:
        assert volume == {"name": "volume-data", "emptyDir": {}} and "refit-shared" not in json.dumps(spec)


def test_events_of_other_objects_say_nothing_of_a_claim() -> None:
    event = {"reason": "ProvisioningFailed", "involvedObject": {"kind": "Pod", "name": "refit-shared-data"}}
    assert not shared_volumes._is_about(event, "refit-shared-data")
