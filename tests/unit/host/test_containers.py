"""One-off containers, without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.core.settings import Settings
from flows.host import containers, tools


def test_where_podman_is_not_installed_a_killed_run_has_left_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "program", lambda _: None)
    assert containers.remove_orphans(Settings(home=tmp_path)) == ()
