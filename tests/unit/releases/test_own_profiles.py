"""A person's recipe is written down as theirs: which names are to be had."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from flows.authoring.own.catalog import Wish
from flows.cli import own_profiles as commands
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.releases.own_profiles import give
from tests.support.machine import ROOT

WISH = Wish("mine", "ada", "runtime", "deb12", "2026a")
FILES = {
    "display.txt": b"Ada's own\n",
    "bundle.yaml": b"extends: minimal\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n\n[requires]\npython_version = "3.11"\n',
}
TWIN = replace(WISH, name="minima1")


@pytest.fixture
def own(settings: Settings) -> Settings:
    return settings.model_copy(update={"catalog": ROOT})


def test_a_name_like_one_of_the_catalog_stays_with_the_person_who_has_it(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefitError, match="looks the same"):
        give(TWIN, FILES, own)
    records = OwnProfiles(open_database(own.database))
    stem = "runtime-minima1-deb12-py311"
    records.take(OwnProfile("minima1", "ada", stem, "2026a", FILES, (), now()), PersonalBuilds())  # from before
    assert give(TWIN, FILES, own).profile == stem
    give(WISH, FILES, own)
    monkeypatch.setattr(commands, "load", lambda: own)
    listed = json.loads(CliRunner().invoke(commands.app, ["list", "--json"]).stdout)
    assert {one["profile"]: one["looks_like"] for one in listed} == {
        stem: "a bundle 'minimal'",
        "runtime-mine-deb12-py311": "",
    }
