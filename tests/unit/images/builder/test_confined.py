"""A machine that can't confine a build refuses it and says why; there is no other way for such a build."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from flows import build_own_profile as building
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.host import tools
from flows.images.builder import confined, mirrors


@pytest.fixture
def own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(mirrors, "problem", lambda settings: "")
    yield settings
    confined._tried.pop(settings.home, None)


def refused(settings: Settings, tmp_path: Path) -> str:
    with pytest.raises(confined.Refused) as told, confined.opened(tmp_path, settings):
        pytest.fail("it begins")
    return told.value.why


def test_without_a_program_it_is_named(own: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    present = tools.program
    monkeypatch.setattr(tools, "program", lambda name: None if name == "mkfs.btrfs" else present(name))
    assert refused(own, tmp_path) == "mkfs.btrfs is not installed"


def test_where_a_first_small_build_fails_its_last_line_is_told_and_nothing_is_built_otherwise(
    own: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    why, calls = "newuidmap: open of uid_map failed: Permission denied", list[list[str]]()

    def fails(call: list[object], **_: object) -> None:
        calls.append([str(word) for word in call])
        raise command.ProgramFailed(calls[-1], "failed", f"…\n{why}\n", None, 125)

    for name in ("workspace", "confined_space"):
        monkeypatch.setattr(confined, name, lambda *_: nullcontext(tmp_path))
    monkeypatch.setattr(tools, "trial_tree", lambda settings: nullcontext(tmp_path))
    monkeypatch.setattr(tools, "runtime", lambda settings: "runc")
    monkeypatch.setattr(confined.command, "run", fails)
    monkeypatch.setattr(confined, "cgroup", lambda *_: tmp_path / "group")
    assert refused(own, tmp_path) == why
    monkeypatch.setattr(building, "load_settings", lambda: own)
    with pytest.raises(confined.Refused, match=r"can't be built on this machine") as told:
        building.build_own_profile.fn("mine")
    assert told.value.why == why
    [tried] = calls  # once by each process
    assert tried[tried.index("--isolation") + 1] == "oci" and "chroot" not in tried


def test_where_none_may_be_built_none_is_tried(own: Settings, tmp_path: Path) -> None:
    none = own.model_copy(update={"personal_builds": PersonalBuilds(at_once=0)})
    assert "at_once" in refused(none, tmp_path)
