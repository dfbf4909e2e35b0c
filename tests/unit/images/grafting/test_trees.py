"""Trees of images, as far as no registry is asked."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

import pytest

from flows.core.settings import Settings
from flows.images.grafting.graft_fit import FILE, FOLDER, SYMLINK, Entry, Layer, merge, reach
from flows.images.grafting.layers import Stored, Trees, _remembered
from flows.images.manifests import Manifest, canonical
from flows.images.registry import Registry
from tests.support.waiting import PATIENCE

FOLDER_OF_ROOT = Entry(FOLDER, 0o755, 0, 0)


def test_images_of_the_same_layers_do_not_differ(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    trees = Trees(settings, Registry(settings))
    # Nothing is left of a stack when both have the same layers, and only the configuration is another.
    assert trees._differing("stages", (), ()) == frozenset()


def test_what_several_threads_ask_at_once_is_worked_out_by_one() -> None:
    asked, begun, go_on = list[str](), Semaphore(0), Event()

    def work(question: str) -> str:
        asked.append(question)
        begun.release()
        assert go_on.wait(PATIENCE)
        return question.upper()

    remembered = _remembered(2, work)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(remembered, question) for question in ("a", "b", "a", "a")]
        assert begun.acquire(timeout=PATIENCE) and begun.acquire(timeout=PATIENCE)
        go_on.set()
        assert [answer.result() for answer in answers] == ["A", "B", "A", "A"]
    assert sorted(asked) == ["a", "b"]


@pytest.fixture
def layers() -> dict[str, Layer]:
    """Layers of an image by their digests, the lowest first."""
    account = Entry(FILE, 0o644, 0, 0, "accounts", 10)
    link = Entry(SYMLINK, 0o777, 0, 0, "/opt/app")
    return {
        "sha256:1": Layer(
            {"etc": FOLDER_OF_ROOT, "etc/passwd": account, "etc/group": account, "srv/old/file": account}
        ),
        "sha256:2": Layer({"srv": link, "opt/app": FOLDER_OF_ROOT}, whiteouts=frozenset({"etc/group"})),
    }


class _Trees(Trees):
    """Trees of layers that are at hand, with a list of those that were loaded whole."""

    def __init__(self, home: Path, layers: Mapping[str, Layer]) -> None:
        settings = Settings(home=home)
        super().__init__(settings, Registry(settings))
        self._layers, self.loaded = layers, list[str]()

    def layer(self, repository: str, part: Stored) -> Layer:
        self.loaded.append(part.digest)
        return self._layers[part.digest]

    def _reach(self, repository: str, part: Stored) -> frozenset[str]:
        return reach(self._layers[part.digest])


def _image(layers: Mapping[str, Layer]) -> Manifest:
    parts = [{"digest": digest, "size": 1, "mediaType": "tar"} for digest in layers]
    return Manifest("sha256:0", "image", canonical({"layers": parts}))


PATHS = {"etc/passwd": True, "etc/group": False, "srv": True, "srv/old/file": False, "opt/app": True, "etc/none": False}


def test_paths_of_an_image_are_told_again_without_loading_its_layers(tmp_path: Path, layers: dict[str, Layer]) -> None:
    first, second = _Trees(tmp_path, layers), _Trees(tmp_path, layers)
    spots = {path: first.finder("stages", _image(layers))(path) for path in PATHS}
    assert {path: entry is not None for path, entry in spots.items()} == PATHS
    assert spots == {path: merge(list(layers.values())).get(path) for path in PATHS}
    assert set(first.loaded) == set(layers)
    assert {path: second.finder("stages", _image(layers))(path) for path in PATHS} == spots
    assert not second.loaded


def test_half_a_line_of_a_killed_process_is_found_out_anew(tmp_path: Path, layers: dict[str, Layer]) -> None:
    first = _Trees(tmp_path, layers)
    spots = {path: first.finder("stages", _image(layers))(path) for path in PATHS}
    for file in tmp_path.rglob("*.spots.*"):
        file.write_bytes(file.read_bytes()[:-9])
    for _ in range(3):
        assert {path: _Trees(tmp_path, layers).finder("stages", _image(layers))(path) for path in PATHS} == spots
    last = _Trees(tmp_path, layers)
    assert {path: last.finder("stages", _image(layers))(path) for path in PATHS} == spots
    assert not last.loaded


@pytest.mark.parametrize(
    "damage", [b"", b"\xff\xfe", b"[1]", b"{}", b'["etc/passwd", 7, true]', b'["etc/passwd"', b"[[],[],[]]"]
)
def test_damaged_lines_say_nothing(tmp_path: Path, layers: dict[str, Layer], damage: bytes) -> None:
    whole = _Trees(tmp_path, layers).finder("stages", _image(layers))("etc/passwd")
    for file in tmp_path.rglob("*.spots.*"):
        file.write_bytes(damage + b"\n")
    assert _Trees(tmp_path, layers).finder("stages", _image(layers))("etc/passwd") == whole
