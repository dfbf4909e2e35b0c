"""`engine:` and `kubernetes:` in settings.yaml: values reach Pods, and a mistake has its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.core import settings
from flows.core.documents import Mistakes
from flows.core.settings.cluster import ClusterSettings
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.manifests import ClusterOptions
from tests.support.pods import SESSION


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFIT_HOME", str(tmp_path))
    return tmp_path / "settings.yaml"


def test_sessions_run_on_this_machine_unless_the_settings_say_otherwise(file: Path) -> None:
    assert not settings.load().in_cluster
    file.write_text("engine: kubernetes\n")
    assert settings.load().in_cluster


def test_each_mistake_has_its_line(file: Path) -> None:
    lines = (
        "engine: docker",
        "kubernetes:",
        "  namespace: Not_One",
        "  home_gb: 0",
        "  tolerations: [{key: a, seconds: 3}]",
    )
    file.write_text("\n".join(lines))
    with pytest.raises(Mistakes) as error:
        settings.load()
    assert sorted(mistake.line for mistake in error.value.mistakes) == [1, 3, 4, 5]
    assert "`seconds` needs `effect: NoExecute`" in str(error.value)


def test_settings_reach_the_pod(file: Path) -> None:
    tolerations = "[{key: dev, value: a, effect: NoSchedule}, {key: b}]"
    told = f"{{tolerations: {tolerations}, memory_gb: 2, cpus: 1.5, registry: 'r:5000'}}"
    file.write_text(f"kubernetes: {told}\n")
    options = ClusterOptions.of(settings.load())
    spec = manifests.pod_spec(SESSION, options, "s")
    first = {"key": "dev", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    assert spec["tolerations"] == [first, {"key": "b", "operator": "Exists"}]
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "2G", "cpu": "1500m"}
    assert spec["containers"][0]["image"] == f"r:5000/workbench-images@{SESSION.image}"


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "gpu.intel.com/i915"])
def test_a_resource_of_gpus_is_one_of_a_device_plugin(name: str) -> None:
    assert ClusterSettings(gpu_resource=name).gpu_resource == name


@pytest.mark.parametrize(
    "name", ["", "memory", "gpu=0", "nvidia.com/", "nvidia.com/gpu/0", "NVIDIA.com/gpu", "a.b/c\n"]
)
def test_what_no_device_plugin_can_offer_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="gpu_resource"):
        ClusterSettings(gpu_resource=name)


@pytest.mark.parametrize("name", ["", "gpu.nvidia.com", "mig-1g.example.com", "gpus"])
def test_a_class_of_devices_is_named_as_kubernetes_names_objects(name: str) -> None:
    assert ClusterSettings(gpu_device_class=name).gpu_device_class == name


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "GPU", "gpu_1", ".gpu", "gpu.", "gpu..a", "gpu\n", "a" * 231])
def test_what_no_class_of_devices_is_called_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="gpu_device_class"):
        ClusterSettings(gpu_device_class=name)


def test_gpus_come_from_a_plugin_or_from_a_class_and_the_mistake_has_its_line(file: Path) -> None:
    file.write_text("kubernetes:\n  gpu_device_class: gpu.example.com\n  gpu_resource: example.com/gpu\n")
    with pytest.raises(Mistakes, match="exclude each other") as error:
        settings.load()
    assert [mistake.line for mistake in error.value.mistakes] == [2]
    file.write_text("kubernetes:\n  gpu_device_class: gpu.example.com\n")
    cluster = settings.load().kubernetes
    assert ClusterSettings.model_validate(cluster.model_dump()) == cluster, "though all settings are told then"
