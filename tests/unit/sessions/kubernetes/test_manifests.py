"""Manifests of sessions: what the restricted Pod Security level asks, what generations share, what is a secret."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.catalog.model import Access
from flows.core.settings import Settings
from flows.services.doctor_cluster import judge_gpus
from flows.sessions.kubernetes import home_pods, isolation, manifests, pull_trial, ssh_mounts, trial_pods
from flows.sessions.kubernetes.home_pods import Mount
from flows.sessions.kubernetes.refusals import Right, role
from flows.sessions.model import HomeRef, Session, Volume
from flows.sessions.trial import alone
from tests.support.pods import OPTIONS, SESSION

WITH_ALL = replace(
    SESSION,
    memory=8 * 10**9,
    cpus=2.0,
    volumes=(Volume("data", "/data", HomeRef("refit-volume-data"), read_only=True),),
)
DEPLOY = Path(__file__).parents[4] / "deploy"
# https://kubernetes.io/docs/concepts/security/pod-security-standards/
ALLOWED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


def not_restricted(spec: dict[str, Any]) -> list[str]:
    """The fields of a Pod that the level `restricted` of the Pod Security Standards refuses."""
    whole = spec.get("securityContext", {})
    wrong = [field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    for volume in spec.get("volumes", ()):
        if not (volume.keys() - {"name"}) <= ALLOWED_VOLUMES:
            wrong.append(f"volume {volume['name']}")
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        own = container.get("securityContext", {})
        both, capabilities = {**whole, **own}, own.get("capabilities", {})
        rules = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": "ALL" in capabilities.get("drop", ()) and not capabilities.get("add"),
            "runAsNonRoot": both.get("runAsNonRoot") is True and both.get("runAsUser") != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
        }
        wrong += [f"{rule} of {container['name']}" for rule, holds in rules.items() if not holds]
    return wrong


@pytest.mark.parametrize("session", [SESSION, WITH_ALL], ids=["plain", "with all"])
def test_pods_meet_the_restricted_level(session: Session) -> None:
    assert not_restricted(manifests.pod(session, OPTIONS, "refit-slot-1")["spec"]) == []
    assert not_restricted(manifests.puller(session.image, "n1", OPTIONS)["spec"]) == []
    assert not_restricted(pull_trial.pod(session.image, ["n1"], OPTIONS, "1")["spec"]) == []
    trial = trial_pods.pod(session, "ada.1", "n1", {"config": {"Cmd": ["launch"]}}, OPTIONS, Settings())
    assert not_restricted(trial["spec"]) == []
    check = trial_pods.pod(alone(session.image, Access()), "image.1", "", {"config": {}}, OPTIONS, Settings())
    assert not_restricted(check["spec"]) == [] and check["spec"]["automountServiceAccountToken"] is False
    assert not [volume for volume in check["spec"]["volumes"] if "emptyDir" not in volume]
    beside = home_pods.pod(session, [Mount("live-0", "refit-home-ada", read_only=True)], "n1", OPTIONS)
    assert not_restricted(beside["spec"]) == []


def own_objects() -> dict[str, dict[str, Any]]:
    """Kind → the object of `deploy/refit`."""
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "refit" / "refit.yaml").read_text())}


def test_refits_own_pod_meets_the_restricted_level_and_is_let_in_to_sessions() -> None:
    template = own_objects()["Deployment"]["spec"]["template"]
    spec = template["spec"]
    assert not_restricted(spec) == []
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert isolation.REFIT.items() <= template["metadata"]["labels"].items()
    rights = yaml.safe_load_all((DEPLOY / "rights.yaml").read_text())
    assert spec["serviceAccountName"] in {
        each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount"
    }


def test_refits_own_settings_hold_and_its_probe_asks_where_prefect_listens() -> None:
    told = yaml.safe_load(own_objects()["ConfigMap"]["data"]["settings.yaml"])
    settings = Settings(**told)
    assert settings.in_cluster and settings.kubernetes.namespace == "refit"
    (container,) = own_objects()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert str(settings.prefect_port) in container["readinessProbe"]["exec"]["command"][-1]
    chosen = yaml.safe_load((DEPLOY / "refit" / "kustomization.yaml").read_text())
    assert chosen["images"][0]["name"] == container["image"]


def test_builders_reach_prefect_by_a_name_that_it_answers_to() -> None:
    made = [*yaml.safe_load_all((DEPLOY / "refit" / "refit.yaml").read_text())]
    services = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "Service"}
    told = yaml.safe_load(own_objects()["ConfigMap"]["data"]["settings.yaml"])
    template = own_objects()["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    for name, ports in {"refit": {"gateway"}, "refit-prefect": {"prefect"}}.items():
        assert {port["targetPort"] for port in services[name]["ports"]} == ports
        assert services[name]["selector"].items() <= template["metadata"]["labels"].items()
    assert {"gateway", "prefect"} == {port["name"] for port in container["ports"]}
    assert Settings(**told).host_names == ("refit-prefect.refit.svc",)
    assert services["refit-prefect"]["ports"][0]["port"] == Settings(**told).prefect_port


def test_the_check_itself_refuses_what_the_level_refuses() -> None:
    spec = manifests.pod(SESSION, OPTIONS, "s")["spec"]
    spec["containers"][0]["securityContext"]["capabilities"] = {"drop": ["NET_RAW"]}
    spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    assert not_restricted({**spec, "hostPID": True}) == ["hostPID", "volume host", "capabilities of a"]


def test_generations_with_another_image_or_environment_share_a_pod_and_others_dont() -> None:
    shape = manifests.shape(SESSION, OPTIONS, "s")
    after = replace(SESSION, generation=2, image=f"sha256:{'b' * 64}", environment={"COLOUR": "blue"}, release="2026b")
    assert manifests.shape(after, OPTIONS, "s") == shape
    for other in (
        replace(SESSION, uid=300_002),
        replace(SESSION, memory=10**9),
        replace(SESSION, home=HomeRef("other")),
    ):
        assert manifests.shape(other, OPTIONS, "s") != shape


def test_one_container_alone_asks_for_gpus() -> None:
    session = replace(SESSION, gpus=2, devices=("example.com/gpu",) * 2)
    spec = manifests.pod_spec(session, OPTIONS, "s")
    (only,) = spec["containers"]
    gpus = {"example.com/gpu": "2"}
    assert only["resources"] == {"limits": gpus, "requests": gpus}
    assert {volume["name"] for volume in spec["volumes"]} >= {"home-a"}
    beside = home_pods.pod(session, [Mount("live-0", "refit-home-ada", read_only=True)], "n1", OPTIONS)
    trial = trial_pods.pod(session, "ada.1", "n1", {"config": {"Cmd": ["launch"]}}, OPTIONS, Settings())
    assert "example.com/gpu" not in json.dumps([beside, trial, manifests.puller(session.image, "n1", OPTIONS)])


def test_the_doctor_says_which_nodes_have_gpus() -> None:
    amounts = {"n2": {"example.com/gpu": "2"}, "n1": {"example.com/gpu": "1"}, "n3": {"example.com/gpu": "0"}, "n4": {}}
    nodes = [{"metadata": {"name": name}, "status": {"allocatable": each}} for name, each in amounts.items()]
    assert judge_gpus([*nodes, {"metadata": {"name": "n5"}}], "example.com/gpu").seen == "example.com/gpu on n1, n2"
    assert "no node offers nvidia.com/gpu" in judge_gpus(nodes, "nvidia.com/gpu").seen


@pytest.mark.parametrize(
    ("session", "limits", "requests"),
    [
        (replace(SESSION, memory=16 * 10**9, cpus=4.0), ("16G", "4"), ("8G", "2")),
        (replace(SESSION, memory=1 << 30, cpus=0.29), ("1073741824", "290m"), ("536870912", "145m")),
        (replace(SESSION, memory=10**9 + 1, cpus=0.001), ("1000000001", "1m"), ("500M", "1m")),
        (replace(SESSION, memory=10**9, cpus=1.5, gpus=1, devices=("a.b/c",)), ("1G", "1500m"), ("1G", "1500m")),
    ],
    ids=["whole", "parts", "odd", "one container"],
)
def test_limits_are_written_as_the_api_server_writes_them(
    session: Session, limits: tuple[str, str], requests: tuple[str, str]
) -> None:
    for container in manifests.pod_spec(session, OPTIONS, "s")["containers"]:
        asked = container["resources"]
        assert (asked["limits"]["memory"], asked["limits"]["cpu"]) == limits
        assert (asked["requests"]["memory"], asked["requests"]["cpu"]) == requests


def test_a_program_gets_its_variables_as_they_are() -> None:
    session = replace(SESSION, environment={"TITLE": "it's $(rm -rf /) `id`\nand more"})
    text = manifests.program(session, ["launch", "a b", "$HOME"])
    assert "export TITLE='it'\"'\"'s $(rm -rf /) `id`\nand more'" in text
    assert text.endswith("exec launch 'a b' '$HOME'\n")


def test_no_secret_is_in_what_everybody_in_the_namespace_may_read() -> None:
    told = json.dumps([manifests.pod(SESSION, OPTIONS, "s"), manifests.record(SESSION, OPTIONS)])
    assert "stringData" not in told
    assert manifests.token(SESSION, OPTIONS, "geheim")["stringData"] == {"token": "geheim"}


def test_a_session_has_its_user_by_name_and_sees_its_keys_but_not_where_images_would_begin_an_sshd() -> None:
    pod = manifests.pod(SESSION, OPTIONS, "s")
    accounts = pod["metadata"]["annotations"][ssh_mounts.ACCOUNTS]
    assert f"dev:*:{SESSION.uid}:0::/home/dev:/bin/bash" in accounts.splitlines()
    (keys,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == "ssh")
    assert keys["secret"]["optional"] and keys["secret"]["defaultMode"] & 0o007 == 0
    assert "token" not in {item["key"] for item in keys["secret"]["items"]}
    for container in pod["spec"]["containers"]:
        (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "ssh")
        assert mount["readOnly"] and "subPath" not in mount and mount["mountPath"] != "/run/refit/ssh"


def test_a_trial_makes_a_token_of_its_own_without_the_end_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    subprocess.run(["sh", "-euc", trial_pods.BEGIN], check=True, env={**os.environ, "REFIT_TOKEN_FILE": str(file)})
    assert re.fullmatch(r"[0-9a-f-]{36}", file.read_text()) and file.stat().st_mode & 0o777 == 0o600


def test_a_pod_as_the_api_server_completes_it_is_not_changed_by_hand() -> None:
    expected = manifests.pod_spec(WITH_ALL, OPTIONS, "s")
    live = json.loads(json.dumps(expected))
    live["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    live["tolerations"] = [{"key": "node.kubernetes.io/not-ready"}]
    live["containers"][1]["image"] = "another"  # the other slot's
    assert manifests.fingerprint(live) == manifests.fingerprint(expected)
    live["containers"][1]["resources"]["limits"]["ephemeral-storage"] = "1Gi"  # of a LimitRange
    assert manifests.changed_by_hand(live, expected, "a") == ()
    live["containers"][1]["resources"]["limits"]["memory"] = "9G"
    assert manifests.changed_by_hand(live, expected, "a") == ("resources of slot b",)
    live["containers"][1]["resources"] = expected["containers"][1]["resources"]
    del live["containers"][1]["volumeMounts"][0]
    live["containers"].append({"name": "miner"})
    live["containers"][0]["image"] = "another"
    changed = ("a container 'miner' in its Pod", "image of slot a", "volumeMounts of slot b")
    assert manifests.changed_by_hand(live, expected, "a") == changed


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(hostname="another"),
        lambda spec: spec.update(automountServiceAccountToken=True),
        lambda spec: spec["securityContext"].update(runAsUser=0),
        lambda spec: spec["containers"].append({"name": "miner"}),
        lambda spec: spec["containers"].pop(),
        lambda spec: spec["containers"][1].update(resources={}),
        *(
            lambda spec, key=key: spec["containers"][1].update({key: "another"})
            for key in ("command", "workingDir", "env", "securityContext", "volumeMounts")
        ),
    ],
)
def test_a_fingerprint_is_another_after_each_change_by_hand_but_of_an_image(change: Callable[[Any], Any]) -> None:
    expected = manifests.pod_spec(WITH_ALL, OPTIONS, "s")
    live = json.loads(json.dumps(expected))
    change(live)
    assert manifests.changed_by_hand(live, expected, "a")
    assert manifests.fingerprint(live) != manifests.fingerprint(expected)


def test_a_right_that_is_missing_comes_with_the_role_that_grants_it() -> None:
    rule = '  - {apiGroups: [""], resources: [pods/exec], verbs: [create]}'
    assert role([Right("pods/exec", "create")], "refit").splitlines()[-1] == rule
