"""Publishing real images: labels, checks in a real container, evidence, tags that never move and an alias that does."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine

from flows.catalog import load
from flows.catalog.model import Access, Base, Bundle, Catalog, Ide, IdeConfig, Profile
from flows.core import database
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.manifests import MANIFEST, canonical
from flows.images.registry import Registry
from flows.images.run import Run
from flows.images.stages import Kind, Stage
from flows.locks.pipfile import read_pipfile
from flows.publishing import evidence, provenance
from flows.publishing.checks import ChecksFailed
from flows.publishing.provenance import Made
from flows.publishing.publish import access_of, already, current, publish
from flows.publishing.published import Published
from flows.publishing.signatures import Publications
from tests.support.machine import build_all

DAY = datetime.date(2026, 11, 20)
PACKAGES = {"deb/tmux": "3.3a-3", "pypi/numpy": "2.1.0"}
WEB = Access(port=8000, health="/")


@pytest.fixture
def engine(shared: Settings) -> Iterator[Engine]:
    opened = database.open_database(shared.database)
    yield opened
    opened.dispose()


@pytest.fixture
def profile(base_recipe: Base, request: pytest.FixtureRequest) -> Profile:
    """A profile of this test alone: tags of other tests don't count."""
    name = "".join(letter for letter in request.node.name.lower() if letter.isalpha())[:60]
    bundle = Bundle(name, Path(), "", (), {})
    ide = Ide("runtime", Path(), "", IdeConfig())
    return Profile(f"runtime-{name}-deb12-py311", "2026a", ide, bundle, base_recipe, "py311")


def with_access(profile: Profile, access: Access) -> Profile:
    return replace(profile, ide=replace(profile.ide, config=IdeConfig(access=access)))


@pytest.fixture
def base(builder: Builder, base: Built) -> Built:
    """The base, with something to do."""
    return builder.build(Stage("waiting", Kind.instructions, base.stage, 'CMD ["sleep", "infinity"]'), base)


@pytest.fixture
def other(builder: Builder, base: Built) -> Built:
    """Another content."""
    return builder.build(Stage("other", Kind.instructions, base.stage, "RUN echo other > /opt/other"), base)


def run_of(settings: Settings, day: datetime.date = DAY) -> Run:
    return Run(settings, Registry(settings), open_database(settings.database), day)


def publish_on(day: datetime.date, profile: Profile, top: Built, settings: Settings, **packages: str) -> Published:
    files = {evidence.PACKAGES: canonical({**PACKAGES, **packages})}
    return publish(profile, top, files, run_of(settings, day))


def test_an_image_is_labelled_checked_tagged_and_found(
    base: Built, profile: Profile, shared: Settings, registry: Registry
) -> None:
    assert current(profile.stem, "2026a", registry) is None
    published = publish_on(DAY, profile, base, shared)
    assert (published.tag, published.new) == (f"{profile.stem}_2026a_20261120", True)
    assert published.content_digest == base.digest != published.digest
    assert current(profile.stem, "2026a", registry) == published.digest
    assert registry.digest(shared.repository, published.tag) == published.digest
    manifest = registry.manifest(shared.repository, published.digest)
    config = registry.config(shared.repository, manifest)
    labels = config["config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == labels["io.refit.profile"] == profile.stem
    assert labels["org.opencontainers.image.version"] == labels["io.refit.release"] == "2026a"
    assert labels["io.refit.content"] == base.digest
    assert access_of(published.digest, registry) == profile.ide.config.access
    assert b"2026-11" not in canonical(config)
    assert published.size == manifest.size > 10_000_000
    assert PACKAGES.keys() < evidence.packages(registry, published.digest).keys()


def test_nothing_new_on_the_next_day(base: Built, profile: Profile, shared: Settings) -> None:
    first = publish_on(DAY, profile, base, shared)
    again = publish_on(DAY + datetime.timedelta(days=1), profile, base, shared)
    assert (again.tag, again.digest, again.new) == (first.tag, first.digest, False)


def test_a_second_build_of_a_day_gets_a_number_and_the_alias(
    base: Built, other: Built, profile: Profile, shared: Settings, registry: Registry
) -> None:
    first = publish_on(DAY, profile, base, shared)
    second = publish_on(DAY, profile, other, shared)
    assert (second.tag, second.new) == (f"{first.tag}.1", True)
    assert registry.digest(shared.repository, first.tag) == first.digest
    assert current(profile.stem, "2026a", registry) == second.digest
    back = publish_on(DAY, profile, base, shared)
    assert (back.tag, back.new) == (first.tag, True)
    assert current(profile.stem, "2026a", registry) == first.digest


def test_publishing_that_was_cut_short_is_finished(
    base: Built, other: Built, profile: Profile, shared: Settings, registry: Registry
) -> None:
    publish_on(DAY, profile, base, shared)
    full = publish_on(DAY, profile, other, shared)
    before = registry.manifest(shared.repository, f"{profile.stem}_2026a_20261120")
    registry.put_manifest(shared.repository, f"{profile.stem}_2026a", before.content, MANIFEST)
    resumed = publish_on(DAY, profile, other, shared)
    assert (resumed.tag, resumed.digest, resumed.new) == (full.tag, full.digest, True)
    assert current(profile.stem, "2026a", registry) == full.digest


def test_an_ide_that_answers(builder: Builder, base: Built, profile: Profile, shared: Settings) -> None:
    text = 'CMD ["python3", "-m", "http.server", "8000"]'
    top = builder.build(Stage("web", Kind.instructions, base.stage, text), base)
    assert publish_on(DAY, with_access(profile, WEB), top, shared).new


@pytest.mark.parametrize(
    ("text", "access", "check"),
    [
        ('CMD ["sleep", "infinity"]', WEB, "ide"),
        ('CMD ["sh", "-c", "echo goodbye; exit 3"]', WEB, "ide"),
        ('CMD ["true"]', Access(), "steady"),
        ('CMD ["/no/such/program"]', Access(), "steady"),
        ("CMD []", Access(), "steady"),
    ],
)
def test_no_tag_for_an_image_that_fails(
    builder: Builder,
    base: Built,
    profile: Profile,
    shared: Settings,
    engine: Engine,
    registry: Registry,
    text: str,
    access: Access,
    check: str,
) -> None:
    top = builder.build(Stage("unfit", Kind.instructions, base.stage, text), base)
    hasty = shared.model_copy(update={"ready_timeout_seconds": 2.0})
    with pytest.raises(ChecksFailed, match=f"'{check}'") as caught:
        publish_on(DAY, with_access(profile, access), top, hasty)
    assert [finding.check for finding in caught.value.findings if not finding.passed] == [check]
    assert current(profile.stem, "2026a", registry) is None
    assert [tag for tag in registry.tags(shared.repository) if tag.startswith(profile.stem)] == []


def test_packages_that_do_not_fit_together_fail(
    builder: Builder, base: Built, profile: Profile, shared: Settings
) -> None:
    site = "/opt/app-root/lib/python3.11/site-packages/broken-1.0.dist-info"
    text = (
        "RUN set -eu; export SOURCE_DATE_EPOCH=315532800; python3 -m venv --without-pip /opt/app-root; "
        f"mkdir -p {site}; printf 'Metadata-Version: 2.1\\nName: broken\\nVersion: 1.0\\n"
        f"Requires-Dist: missing>=2\\n' > {site}/METADATA"
    )
    top = builder.build(Stage("broken", Kind.instructions, base.stage, text), base)
    with pytest.raises(ChecksFailed, match="'pip'") as caught:
        publish_on(DAY, profile, top, shared)
    assert "broken 1.0 requires missing" in caught.value.why


def asking_for(profile: Profile, folder: Path, *packages: str) -> Profile:
    """The profile, with a bundle whose Pipfile names these packages."""
    asked = "".join(f'{name} = "*"\n' for name in packages)
    source = '[[source]]\nname = "pypi"\nurl = "https://pypi.org/simple"\nverify_ssl = true\n'
    (folder / "Pipfile").write_text(f'{source}\n[packages]\n{asked}\n[requires]\npython_version = "3.11"\n')
    (folder / "Pipfile.lock").write_text("{}")
    return replace(profile, bundle=replace(profile.bundle, pythons={"py311": folder}))


def test_all_that_is_wrong_inside_is_reported_at_once(
    builder: Builder, base: Built, profile: Profile, shared: Settings, tmp_path: Path
) -> None:
    text = (
        "ENV NPM_TOKEN=abc\n"
        "RUN set -eu; echo 'x = 1' > /opt/thing.py; "
        "python3 -m compileall -q --invalidation-mode timestamp /opt/thing.py; "
        "printf 'machine index login me password horse-battery' > /home/dev/.netrc; "
        "chown 1001 /home/dev/.netrc; chmod 600 /home/dev/.netrc"
    )
    top = builder.build(Stage("faulty", Kind.instructions, base.stage, text), base)
    careful = shared.model_copy(update={"auth": SecretStr("horse-battery")})
    with pytest.raises(ChecksFailed, match="'imports', 'stale', 'secrets'") as caught:
        publish_on(DAY, asking_for(profile, tmp_path, "absent"), top, careful)
    for seen in (
        "absent: it is not installed",
        "/opt/__pycache__/thing.cpython-311.pyc: its source has another time or size",
        "environment: NPM_TOKEN",
        "/home/dev/.netrc: holds auth",
    ):
        assert seen in caught.value.why
    assert "horse-battery" not in str(caught.value)


def test_growth_needs_a_persons_word(
    builder: Builder, base: Built, profile: Profile, shared: Settings, registry: Registry
) -> None:
    first = publish_on(DAY, profile, base, shared)
    text = (
        'RUN python3 -c \'import random; random.seed(1); open("/opt/data", "wb").write(random.randbytes(20_000_000))\''
    )
    top = builder.build(Stage("large", Kind.instructions, base.stage, text), base)
    with pytest.raises(ChecksFailed, match="'size'") as caught:
        publish_on(DAY, profile, top, shared)
    assert "more than the image before" in caught.value.why
    assert current(profile.stem, "2026a", registry) == first.digest
    allowed = replace(profile, size_budget=first.size + 21_000_000)
    assert publish_on(DAY, allowed, top, shared).new
    with pytest.raises(ChecksFailed, match="'size'") as caught:
        publish_on(DAY, replace(profile, size_budget=first.size), top, shared)
    assert "over its budget" in caught.value.why and "deb/" in caught.value.why


def test_the_catalogs_own_image_is_fit_and_has_what_its_evidence_says(
    builder: Builder, jupyter_chain: tuple[Stage, ...], catalog: Catalog, shared: Settings
) -> None:
    # A budget, for another test may have published a smaller image of that name in the registry that they share.
    profile = replace(load.profile(catalog, "2026a", "jupyter-minimal-deb12-py311"), size_budget=1_000_000_000)
    registry = Registry(shared)
    tops = build_all(builder, jupyter_chain)
    made = [Made(built.stage, built.key, built.digest, {}, "built") for built in tops]
    files, predicate = evidence.of_stages(jupyter_chain), provenance.predicate(profile, jupyter_chain, made)
    published = publish(profile, tops[-1], files, run_of(shared), predicate)
    findings = {str(one["check"]): one for one in evidence.findings(registry, published.digest)}
    assert list(findings) == ["ide", "pip", "imports", "stale", "secrets", "packages", "size"]
    assert all(one["passed"] for one in findings.values())
    pipfile = read_pipfile(profile.bundle.pythons["py311"] / "Pipfile")
    assert findings["imports"]["seen"] == f"{len(pipfile.everywhere(['packages', 'jupyter']))} packages"
    # The locks agree with the records of dpkg and pip inside.
    assert evidence.sizes(registry, published.digest).keys() == evidence.packages(registry, published.digest).keys()
    assert findings["packages"]["seen"] == f"{len(evidence.packages_of(jupyter_chain))} packages, all as locked"
    names = {file.name for file in evidence.listed(registry, published.digest)}
    assert {*files, evidence.PROVENANCE, evidence.CHECKS, evidence.SIZES, evidence.LOCK} == names
    said = json.loads(evidence.read(registry, published.digest, evidence.PROVENANCE))
    assert f"sha256:{said['subject'][0]['digest']['sha256']}" == published.digest


@pytest.mark.long
def test_what_a_recipe_installs_by_itself_is_told_and_in_the_evidence(
    builder: Builder,
    base: Built,
    base_stage: Stage,
    profile: Profile,
    shared: Settings,
    engine: Engine,
    registry: Registry,
) -> None:
    text = (
        "RUN set -eu; export SOURCE_DATE_EPOCH=315532800; mkdir -p /tmp/own/DEBIAN; "
        "printf 'Package: own\\nVersion: 1.0-1\\nArchitecture: all\\nMaintainer: me\\nDescription: it\\n' "
        "> /tmp/own/DEBIAN/control; dpkg-deb --build /tmp/own; dpkg --install /tmp/own.deb; rm -r /tmp/own /tmp/own.deb"
    )
    top = builder.build(Stage("own", Kind.instructions, base.stage, text), base)
    published = publish(profile, top, evidence.of_stages((base_stage,)), run_of(shared))
    [told] = [one for one in evidence.findings(registry, published.digest) if one["check"] == "packages"]
    assert told["passed"] and told["seen"] == "deb/own 1.0-1 is in no lock"
    assert evidence.packages(registry, published.digest) == {**evidence.packages_of((base_stage,)), "deb/own": "1.0-1"}
    stated = json.loads(evidence.read(registry, published.digest, evidence.SBOM))["components"]
    assert [part["version"] for part in stated if part["name"] == "own"] == ["1.0-1"]


def test_newer_evidence_wins_and_the_same_is_kept_once(
    base: Built, profile: Profile, shared: Settings, engine: Engine, registry: Registry
) -> None:
    published = publish_on(DAY, profile, base, shared)
    image = registry.manifest(shared.repository, published.digest)
    tag = published.digest.replace(":", "-")
    before = registry.digest(shared.repository, tag)
    publish_on(DAY, profile, base, shared)
    assert registry.digest(shared.repository, tag) == before is not None
    evidence.attach(registry, image, {evidence.PACKAGES: canonical({"deb/tmux": "4"})}, engine)
    assert evidence.packages(registry, published.digest) == {"deb/tmux": "4"}
    assert len(registry.manifest(shared.repository, tag).document["manifests"]) == 3  # the signature is one of them


def test_what_the_registry_has_lost_of_an_image_is_published_anew(
    base: Built, profile: Profile, shared: Settings, engine: Engine, registry: Registry
) -> None:
    published = publish_on(DAY, profile, base, shared)
    image, publications = registry.manifest(shared.repository, published.digest), Publications(shared, engine)
    for lost in ("configuration", "layer", "a file of its evidence", "its evidence"):
        assert [one.tag for one in already([(profile, base.digest)], registry, publications)] == [published.tag]
        attached = evidence.newest(registry, published.digest)
        assert attached
        config, layer, file = image.part_digests[0], image.part_digests[-1], attached.part_digests[-1]
        if lost == "its evidence":
            assert registry.delete(shared.repository, attached.digest)
        else:
            blob = {"configuration": config, "layer": layer}.get(lost, file)
            assert registry._send("DELETE", f"{shared.repository}/blobs/{blob}").status == 202
        assert already([(profile, base.digest)], registry, publications) == (), lost
        again = publish_on(DAY + datetime.timedelta(days=1), profile, base, shared)
        assert (again.tag, again.digest, again.new) == (published.tag, published.digest, False)
    assert [one.tag for one in already([(profile, base.digest)], registry, publications)] == [published.tag]
    assert PACKAGES.items() <= evidence.packages(registry, published.digest).items()
