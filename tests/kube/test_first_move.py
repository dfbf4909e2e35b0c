"""The first five minutes with a cluster: each command of that chapter of docs/kubernetes.md, as it stands there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.core.settings import load
from flows.images.registry import Registry
from tests.support import cluster_images, variants
from tests.support.cluster import REGISTRY, Lab, kubectl
from tests.support.desk import Desk
from tests.support.waiting import PATIENCE, free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * PATIENCE)]
PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
PROFILE, RELEASE, NAMESPACE = "jupyter-minimal-deb12-py311", "2026a", "refit"


def blocks(beginning: str) -> list[str]:
    """The blocks of the chapter that begin so."""
    (text,) = re.findall(r"^## Five minutes\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{beginning}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def chapter() -> list[str]:
    """The commands of the chapter, one a line, without what is said of them."""
    lines = [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def settings_of_the_chapter() -> dict[str, object]:
    """The settings.yaml of the chapter."""
    (text,) = blocks("yaml\n# settings.yaml")
    return dict(yaml.safe_load(text))


@pytest.fixture
def desk(cluster: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    home = tmp_path / "refit"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("REFIT_HOME", str(home))
    desk = Desk(home, {}, patience=PATIENCE)
    ports = ("gateway_port", "gateway_api_port", "hub_port", "prefect_port")
    here = {"registry": REGISTRY, "registry_tls": False, **{port: free_port() for port in ports}}
    (home / "settings.yaml").write_text(yaml.safe_dump({**settings_of_the_chapter(), **here}))
    yield desk
    desk.refit("down")
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


class Publisher:
    """Stands for `refit build`, which other tests run: an image with a small web server, tested and published."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.images = folder, list[str]()

    def build(self, desk: Desk) -> None:
        """Publish the next image of the profile."""
        labels = {"io.refit.profile": PROFILE, "io.refit.release": RELEASE}
        name = f"first-{len(self.images) + 1}"
        registry, repository = Registry(desk.settings), desk.settings.repository
        image = registry.manifest(repository, cluster_images.push(name, ":", self._folder))
        variants.sign(desk.settings, registry, image, labels)
        registry.put_manifest(repository, f"{PROFILE}_{RELEASE}", image.content, image.media_type)
        self.images.append(image.digest)


def test_each_command_of_the_chapter_does_what_it_says(desk: Desk, tmp_path: Path) -> None:
    publisher, said = Publisher(tmp_path), dict[str, str]()
    for line in chapter():
        program, *words = shlex.split(line)
        if program == "kubectl":
            kubectl(*words)
        elif words[0] == "build":
            publisher.build(desk)
        else:
            said[" ".join(words)] = desk.refit(*words)
    assert len(publisher.images) == 2 and load().in_cluster
    assert "[ok] rights" in said["doctor"]
    (told,) = json.loads(desk.refit("session", "list", "--json"))
    assert told["running"] == "running" and told["session"]["image"] == publisher.images[1]
    (moved,) = json.loads(desk.refit("migrate", "history", "--json"))
    assert moved["state"] == "cleaned" and moved["after"]["image"] == publisher.images[1]
    assert "written before the move" in said["session exec ada cat notes"]
    assert "cleaned" in said["migrate history ada"]
