"""Exact system packages from a real mirror."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from flows.catalog.model import Base
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.locks import system
from tests.support.waiting import free_port


def test_all_packages_are_resolved_once(base_recipe: Base, shared: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refit.command")
    small = replace(base_recipe, name="resolvedonce", packages=("tmux",))
    exact = system.resolve(small, shared)
    versions = dict(package.split("=", 1) for package in exact)
    assert exact == tuple(sorted(exact))
    assert {"tmux", "libc6", "dpkg", "apt"} <= versions.keys()
    assert "python3" not in versions
    assert len(caplog.messages) == 1
    caplog.clear()
    assert system.resolve(small, shared) == exact
    assert caplog.messages == []


def test_a_package_that_does_not_exist_is_named(base_recipe: Base, shared: Settings) -> None:
    with pytest.raises(RefitError, match="bookworm has no package 'nonesuch'") as caught:
        system.resolve(replace(base_recipe, packages=("tmux", "nonesuch")), shared)
    assert "os-packages.txt" in caught.value.hint


@pytest.mark.parametrize("mirror", ["down", "another server"])
def test_a_mirror_that_is_none_is_said(base_recipe: Base, shared: Settings, mirror: str) -> None:
    port = free_port() if mirror == "down" else shared.registry_port
    elsewhere = shared.model_copy(update={"debian_mirror": f"http://127.0.0.1:{port}"})
    with pytest.raises(RefitError, match="mirror doesn't answer") as caught:
        system.resolve(base_recipe, elsewhere)
    assert str(port) in caught.value.why
    assert "debian_mirror" in caught.value.hint
