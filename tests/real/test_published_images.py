"""Sessions start from, and move to, what a Refit that counts has published, whatever aliases point at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.catalog import load
from flows.cli.home import _target
from flows.cli.main import app
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.create_session import find_image
from flows.images.build import Built
from flows.images.manifests import Manifest, canonical, digest_of
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.rollouts.targets import targets
from flows.migrations.switch_profile import switch_session
from flows.publishing import evidence
from flows.publishing.signatures import NotPublished, Publications
from flows.services import doctor_sessions
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.signing.keys import Keys, pem_of
from flows.signing.trust import ENVELOPE, Doubt, Trust
from tests.support.machine import FIRST, ROOT, another_registry, private_home
from tests.support.moving import carry_out
from tests.support.variants import LIGHT, light, sign

NAME, RELEASE = "mallory", "2026a"
ALIAS = f"{FIRST}_{RELEASE}"
LABELS = {"io.refit.profile": FIRST, "io.refit.release": RELEASE}


@dataclass
class Scene:
    """A home, and a registry in which whoever has its password moves aliases."""

    settings: Settings
    registry: Registry
    base: Built

    def published(self, name: str) -> str:
        digest = light(self.settings, self.registry, self.base, name, labels=LABELS)
        self.point(self.registry.manifest(self.settings.repository, digest))
        return digest

    def pushed(self, digest: str, name: str) -> Manifest:
        """As an attacker: another image, to which the alias points."""
        image = self.registry.manifest(self.settings.repository, digest)
        config = dict(self.registry.config(self.settings.repository, image))
        content = canonical({**config, "author": name})
        self.registry.put_blob(self.settings.repository, content)
        part = {**image.document["config"], "digest": digest_of(content), "size": len(content)}
        written = canonical({**image.document, "config": part})
        pushed = Manifest(digest_of(written), image.media_type, written)
        self.point(pushed)
        return pushed

    def point(self, image: Manifest) -> None:
        for tag in (ALIAS, f"{ALIAS}_20261121"):
            self.registry.put_manifest(self.settings.repository, tag, image.content, image.media_type)

    def check_refused(self, digest: str, doubt: Doubt) -> None:
        """Nothing that starts sessions or moves them takes this image, to which the alias points."""
        sessions, planning = Sessions.open(self.settings), SessionPlanner(self.settings)
        session = sessions.store.session(NAME)
        profile = load.profile(load.load_catalog(ROOT), RELEASE, FIRST)
        refused = {
            "the image of a new session": lambda: find_image.fn(profile, self.settings),
            "a new session": lambda: sessions.create("eve", FIRST, RELEASE, digest, LIGHT),
            "a plan for a session": lambda: planning.plan([NAME], ""),
            "--to": lambda: targets([session], digest, self.settings),
            "a move": lambda: MoveExecutor.open(self.settings).carry_out(
                Decision(NAME, Action.migrate, session.image, digest)
            ),
            "a rehearsal": lambda: _target(self.settings, session, ""),
            "a rehearsal --to": lambda: _target(self.settings, session, digest),
            "another profile": lambda: switch_session(self.settings, NAME, FIRST, RELEASE),
        }
        for what, attempt in refused.items():
            with pytest.raises(NotPublished) as caught:
                attempt()
            assert caught.value.refusal.doubt is doubt, what
            assert str(doubt) in str(caught.value) and caught.value.hint
        assert "eve" not in sessions.store.homes()
        (line,) = planning.plan([], "", begin=True)
        assert (line.action, line.reason, line.new) == (Action.skip, Reason.refused, "") and str(doubt) in line.detail
        [finding] = doctor_sessions.aliases(self.settings)
        assert not finding.ok and f"{ALIAS} ({doubt})" in finding.seen and "refit images sign" in finding.hint


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("published") / "home"
    with (
        another_registry(tmp_path_factory) as server,  # all images in it are this file's
        private_home(folder, server.port, catalog=ROOT, stop_grace_seconds=3.0) as settings,
    ):
        (settings.home / "keys" / "signing.pem").unlink()  # that of other tests, which doesn't count here
        yield settings


@pytest.fixture(scope="module")
def scene(settings: Settings, base: Built) -> Iterator[Scene]:
    """A session that runs on a published image."""
    scene = Scene(settings, Registry(settings), base)
    sessions = Sessions.open(settings)
    sessions.create(NAME, FIRST, RELEASE, scene.published("first"), LIGHT)
    yield scene
    sessions.remove(NAME, purge=True)


def test_an_image_that_nobody_signed_is_taken_by_nothing(scene: Scene) -> None:
    evil = scene.pushed(scene.published("old"), "evil")
    scene.check_refused(evil.digest, Doubt.unsigned)


def test_an_image_of_a_key_that_does_not_count_is_taken_only_where_it_is_trusted(scene: Scene, tmp_path: Path) -> None:
    evil = scene.pushed(scene.published("old"), "another key")
    with private_home(tmp_path / "other", scene.settings.registry_port) as other:
        sign(other, Registry(other), evil, LABELS)
        scene.check_refused(evil.digest, Doubt.unknown_key)
        key = pem_of(Keys(other).signer().public_key)
    trusting = scene.settings.model_copy(update={"trusted_keys": (key,)})
    assert Publications(trusting).newest(FIRST, RELEASE) == evil.digest


def test_a_signature_that_was_copied_from_another_image_is_none(scene: Scene) -> None:
    good = scene.published("good")
    evil = scene.pushed(good, "copied")
    [envelope] = evidence.contents(scene.registry, good, ENVELOPE, evidence.SIGNATURE, 8)
    database = open_database(scene.settings.database)
    evidence.add(scene.registry, evil, ENVELOPE, {evidence.SIGNATURE: envelope}, database)
    scene.check_refused(evil.digest, Doubt.broken)


def test_what_was_published_and_revoked_is_taken_no_more_and_the_session_on_it_goes_on(scene: Scene) -> None:
    sessions, trust = Sessions.open(scene.settings), Trust(scene.settings, open_database(scene.settings.database))
    current = sessions.store.session(NAME).image
    bad = scene.published("bad")
    for digest in (bad, current):
        trust.revoke(digest, "a hole", "root")
    scene.check_refused(bad, Doubt.revoked)
    sessions.stop(NAME)
    assert sessions.start(NAME).image == current
    assert sessions.show(NAME).running is Running.running
    for digest in (bad, current):
        trust.restore(digest)


def test_evidence_and_signature_may_be_lost_as_long_as_the_record_is_there(scene: Scene) -> None:
    good = scene.published("stripped")
    assert scene.registry.delete(
        scene.settings.repository, scene.registry.digest(scene.settings.repository, good.replace(":", "-")) or ""
    )
    assert Publications(scene.settings).newest(FIRST, RELEASE) == good
    elsewhere = scene.settings.model_copy(update={"database_url": f"sqlite:///{scene.settings.home}/other.db"})
    with pytest.raises(NotPublished, match="unsigned"):
        Publications(elsewhere).require(good)


def test_what_was_published_counts_by_its_signature_after_the_loss_of_the_database(scene: Scene) -> None:
    good = scene.published("signed")
    elsewhere = scene.settings.model_copy(update={"database_url": f"sqlite:///{scene.settings.home}/lost.db"})
    assert Publications(elsewhere).newest(FIRST, RELEASE) == good


def test_an_image_from_before_is_signed_by_a_verb_and_a_session_moves_to_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scene.pushed(scene.published("old"), "from before the upgrade")
    told = {"HOME": scene.settings.home, "REGISTRY_PORT": scene.settings.registry_port}
    for name, value in told.items():
        monkeypatch.setenv(f"REFIT_{name}", str(value))

    def refit(*words: str) -> str:
        done = CliRunner().invoke(app, ["images", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    shown = json.loads(refit("sign", "--json", "--dry-run"))
    assert [(one["digest"], one["refusal"]["doubt"]) for one in shown] == [(before.digest, "unsigned")]
    refit("sign", "--profile", "another", "--yes")
    refit("sign")  # nobody is asked where nobody can answer
    scene.check_refused(before.digest, Doubt.unsigned)
    assert "1 images are signed" in refit("sign", "--yes")
    assert Publications(scene.settings).newest(FIRST, RELEASE) == before.digest
    [finding] = doctor_sessions.aliases(scene.settings)
    assert finding.ok
    refit("revoke", ALIAS, "--why", "a hole")
    scene.check_refused(before.digest, Doubt.revoked)
    assert [one["why"] for one in json.loads(refit("revoked", "--json"))] == ["a hole"]
    refit("restore", before.digest)
    old = Sessions.open(scene.settings).store.session(NAME).image
    (line,) = SessionPlanner(scene.settings).plan([NAME], "")
    result = carry_out(MoveExecutor.open(scene.settings), line)
    assert (result.state, result.old, result.new) == (State.cleaned, old, before.digest), result.reason
