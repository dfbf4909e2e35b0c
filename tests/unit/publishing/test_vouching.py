"""The verbs about what counts, and doctor's word on aliases, with a registry in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.manifests import CONFIG, MANIFEST, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.publishing import evidence, provenance
from flows.publishing.signatures import NotPublished, Publications
from flows.services import doctor_sessions
from tests.support.registry_in_memory import IMAGES, Fake
from tests.support.small_registry import client, server

pytestmark = pytest.mark.slow

PROFILE, OTHER, RELEASE = "runtime-minimal-deb12-py311", "runtime-more-deb12-py311", "2026a"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    with server(Fake(tells=False)) as port:
        monkeypatch.setenv("REFIT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("REFIT_REGISTRY_PORT", str(port))
        yield Settings(home=tmp_path / "home", registry_port=port)


@pytest.fixture
def registry(here: Settings) -> Registry:
    return client(here, here.registry_port)


@pytest.fixture
def push(registry: Registry) -> Callable[..., str]:
    def pushed(profile: str, day: str = "20261120") -> str:
        """An image of a profile under its alias and a date tag, as from before images were signed."""
        labels = {"io.refit.profile": profile, "io.refit.release": RELEASE}
        config = canonical({"config": {"Labels": labels}, "day": day})
        registry.put_blob(IMAGES, config)
        content = canonical({"mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": []})
        alias = f"{profile}_{RELEASE}"
        for tag in (alias, f"{alias}_{day}", digest_of(content)):
            registry.put_manifest(IMAGES, tag, content, MANIFEST)
        return digest_of(content)

    return pushed


def refit(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["images", *words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def counts(here: Settings, digest: str) -> bool:
    return not Publications(here).refusals([digest])


def test_images_from_before_are_shown_and_signed_when_a_person_says_so(
    here: Settings, registry: Registry, push: Callable[..., str]
) -> None:
    old, new, more = push(PROFILE), push(PROFILE, "20261121"), push(OTHER)
    database = open_database(here.database)
    attached = {evidence.CHECKS: canonical([{"check": "ide", "passed": True, "seen": "", "seconds": 0.0}])}
    how = {**provenance.asked(PROFILE, RELEASE), "made": "so"}
    attached[evidence.PROVENANCE] = canonical(provenance.statement(IMAGES, new, how))
    evidence.attach(registry, registry.manifest(IMAGES, new), attached, database)
    shown = {one["digest"]: one for one in json.loads(refit("sign", "--json"))}
    assert shown.keys() == {new, more}
    assert {one["refusal"]["doubt"] for one in shown.values()} == {"unsigned"}
    assert (shown[new]["tested"], shown[more]["tested"]) == (True, False)
    assert {one["digest"] for one in json.loads(refit("sign", "--json", "--all"))} == {old, new, more}
    refit("sign", "--dry-run", "--yes")
    assert not counts(here, new)
    assert "1 images are signed" in refit("sign", "--profile", PROFILE, "--yes")
    assert (counts(here, old), counts(here, new), counts(here, more)) == (False, True, False)
    lost = here.model_copy(update={"database_url": f"sqlite:///{here.home}/lost.db"})
    assert Publications(lost).newest(PROFILE, RELEASE) == new
    refit("sign", f"{PROFILE}_{RELEASE}_20261120", "--yes")
    assert counts(here, old)
    assert "To be signed" in refit("sign", old)


def test_what_is_revoked_counts_no_more_until_it_is_restored(here: Settings, push: Callable[..., str]) -> None:
    image = push(PROFILE)
    refit("sign", "--yes")
    refit("revoke", f"{PROFILE}_{RELEASE}", "--why", "a hole")
    with pytest.raises(NotPublished, match="revoked"):
        Publications(here).newest(PROFILE, RELEASE)
    assert json.loads(refit("sign", "--json")) == []  # nobody can vouch for what was revoked
    assert [(one["what"], one["why"]) for one in json.loads(refit("revoked", "--json"))] == [(image, "a hole")]
    refit("restore", image)
    refit("restore", image, code=1)
    assert counts(here, image)
    key = json.loads(refit("keys", "--json"))["signing"]
    refit("revoke", key, "--why", "it was copied")
    assert not counts(here, image)
    renewed = json.loads(refit("keys", "--new", "--json"))
    assert renewed["signing"] != key and key in renewed["trusted"] and "BEGIN PUBLIC KEY" in renewed["public"]
    refit("sign", "--yes")
    assert not counts(here, image)
    refit("sign", image, "--yes")  # who names it vouches for it, by the new key
    assert counts(here, image)
    refit("revoke", image, "--why", "itself")
    refit("sign", image, "--yes")
    assert not counts(here, image)


def test_doctor_names_aliases_that_point_at_what_nobody_published(
    here: Settings, tmp_path: Path, push: Callable[..., str]
) -> None:
    assert list(doctor_sessions.aliases(here)) == []  # nothing was ever done here
    open_database(here.database)
    push(PROFILE)
    refit("sign", "--yes")
    [finding] = doctor_sessions.aliases(here)
    assert finding.ok
    push(PROFILE, "20261122")
    [finding] = doctor_sessions.aliases(here)
    assert not finding.ok and f"{PROFILE}_{RELEASE} (unsigned)" in finding.seen and "images sign" in finding.hint
    away = here.model_copy(update={"registry_port": 1})
    assert list(doctor_sessions.aliases(away)) == []
