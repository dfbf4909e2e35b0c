"""The lock rules of a release: bounds, exceptions that have expired, the first lock that is written down."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest

from flows import lock_requirements
from flows.catalog import load
from flows.catalog.model import Catalog
from flows.catalog.pins import Reach
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.lock_requirements import Lock
from flows.locks import python_lockfile
from flows.locks.policy import Forbidden
from tests.support.machine import ROOT

MINIMAL = "bundles/1-minimal/py311"
PROFILES = "profiles:\n  - {ide: runtime, bundle: minimal, os: deb12, python: py311}\n"
EXCEPTIONS = 'exceptions:\n  - {package: certifi, range: ">=1", reason: CVE-1, expires: 2026-11-20}\n'
FIRST = {"bundles": {"minimal": {"py311": {"packages": {"requests": "2.0.0"}}}}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A catalog with one bundle, and its lock as it is."""
    for part in ("base/deb12", "bundles/1-minimal", "ides/1-jupyter", "ides/2-runtime", "ides/3-terminal", "snippets"):
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "releases").mkdir()
    release(tmp_path, "2026a")
    return tmp_path


def release(root: Path, name: str, more: str = "", first: object = None) -> None:
    (root / "releases" / f"{name}.yaml").write_text(f"release: {name}\n{PROFILES}{more}")
    if first is not None:
        (root / "releases" / f"{name}.lock").write_text(json.dumps(first))


def locked_bundles(catalog: Catalog) -> list[lock_requirements.Target]:
    return lock_requirements.targets(catalog.releases.values())


def test_a_release_that_is_not_cut_has_no_bounds(root: Path) -> None:
    release(root, "2026b")
    [target] = locked_bundles(load.load_catalog(root))
    assert target.bounds is None


def test_a_release_that_is_cut_holds_the_lock_of_all_that_share_it(root: Path) -> None:
    release(root, "2026b", "reach: {CertiFi: any}\n", FIRST)
    [target] = locked_bundles(load.load_catalog(root))
    assert target.bounds and (target.bounds.release, target.bounds.reach) == ("2026b", {"certifi": Reach.any})
    release(root, "2026a", first=FIRST)
    with pytest.raises(RefitError, match="2026a and 2026b both hold the lock of minimal py311"):
        locked_bundles(load.load_catalog(root))


def test_an_expired_exception_is_refused_with_its_line(root: Path) -> None:
    release(root, "2026a", EXCEPTIONS)
    catalog = load.load_catalog(root).releases["2026a"]
    lock_requirements.refuse_expired(catalog, root, date(2026, 11, 20))
    with pytest.raises(Mistakes, match=r"2026a\.yaml:5: the exception for certifi \(CVE-1\) held until 2026-11-20"):
        lock_requirements.refuse_expired(catalog, root, date(2026, 11, 21))


def test_the_first_lock_is_written_down_once(root: Path) -> None:
    release(root, "2026a", first={"bundles": {}})
    catalog = load.load_catalog(root)
    [target] = locked_bundles(catalog)
    outcome = Lock("minimal", "deb12", "py311", lock_requirements.NOTHING)
    lock_requirements.write_down(catalog.releases["2026a"], [target], [RuntimeError()], root)
    assert not load.load_catalog(root).releases["2026a"].pins.began_with("minimal", "py311")

    lock_requirements.write_down(catalog.releases["2026a"], [target], [outcome], root)
    catalog = load.load_catalog(root)
    first = catalog.releases["2026a"].pins.began_with("minimal", "py311")
    assert first == python_lockfile.by_category(root / MINIMAL)

    file = root / "releases/2026a.lock"
    before = file.read_bytes()
    lock_requirements.write_down(catalog.releases["2026a"], locked_bundles(catalog), [outcome], root)
    assert file.read_bytes() == before


def test_a_release_that_is_not_cut_gets_no_first_lock(root: Path) -> None:
    catalog = load.load_catalog(root)
    outcome = Lock("minimal", "deb12", "py311", lock_requirements.NOTHING)
    lock_requirements.write_down(catalog.releases["2026a"], locked_bundles(catalog), [outcome], root)
    assert not (root / "releases/2026a.lock").exists()


def test_a_check_holds_locks_against_the_word_of_their_release(root: Path) -> None:
    release(root, "2026a", first=FIRST)
    with pytest.raises(Forbidden, match="requests would be 2"):
        lock_requirements.check_locks("2026a", catalog=root)


@pytest.mark.parametrize("text", ["{", '{"bundles": {"minimal": {"py311": {"packages": {"six": "one"}}}}}', "[]"])
def test_a_first_lock_with_a_mistake_is_named(root: Path, text: str) -> None:
    (root / "releases/2026a.lock").write_text(text)
    with pytest.raises(Mistakes, match=r"releases/2026a\.lock"):
        load.load_catalog(root)


def test_vulnerabilities_come_from_the_file_of_the_settings(root: Path, tmp_path: Path) -> None:
    locked = python_lockfile.by_category(root / MINIMAL)
    version = locked["packages"]["requests"]
    affected = {
        "package": {"ecosystem": "PyPI", "name": "requests"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
    }
    (tmp_path / "osv.json").write_text(json.dumps([{"id": "CVE-1", "affected": [affected]}]))
    release(root, "2026a", first={"bundles": {"minimal": {"py311": locked}}})
    targets = locked_bundles(load.load_catalog(root))
    settings = Settings(home=tmp_path / "home", osv_file=tmp_path / "osv.json")
    [[one]] = lock_requirements.unmended(targets, settings)
    assert str(one) == f"requests {version}: CVE-1, mended in 99.0"
    assert lock_requirements.unmended(targets, Settings(home=tmp_path / "home", osv_service="")) == [()]
