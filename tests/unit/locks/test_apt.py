"""The command that resolves the packages of Debian."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.catalog.model import Base, BaseConfig
from flows.locks import apt

BASE = Base(
    "deb12", Path("/nowhere"), "Debian", BaseConfig(family="deb", suite="bookworm", pythons=("py311",)), ("tmux",)
)


@pytest.mark.parametrize(("uid", "mode"), [(0, "root"), (10_001, "chrootless")])
def test_who_is_not_root_resolves_without_any_right(monkeypatch: pytest.MonkeyPatch, uid: int, mode: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    argv = apt.simulation(BASE, "/tmp/sources.list", ["--aptopt=x"])
    assert (argv[0], argv[1]) == ("mmdebstrap", f"--mode={mode}") and "--simulate" in argv
    assert argv[-3:] == ["bookworm", "-", "/tmp/sources.list"] and "--include=tmux" in argv
