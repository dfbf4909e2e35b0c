"""Whether anything is locked anew: package indexes on loopback are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest
from pydantic import SecretStr

from flows.core.settings import Settings
from flows.locks import freshness, python_lockfile, simple_index
from flows.locks.freshness import Finding, LockLook, LockRecord, Verdict
from flows.locks.pipfile import read_pipfile
from flows.locks.simple_index import Page, Unreadable
from tests.support.site import Site
from tests.support.waiting import PATIENCE

AT = datetime(2026, 11, 21, 2, tzinfo=UTC)
JSON = "application/vnd.pypi.simple.v1+json"


def page(name: str, *versions: str, yanked: bool = False, **more: object) -> bytes:
    files = [
        {
            "filename": f"{name}-{version}-py3-none-any.whl",
            "url": f"files/{name}",
            "hashes": {"sha256": hashlib.sha256(version.encode()).hexdigest()},
            "requires-python": ">=3.9",
            "yanked": yanked,
        }
        for version in versions
    ]
    return json.dumps({"meta": {"api-version": "1.0"}, "name": name, "files": files, **more}).encode()


def html_page(*links: str) -> str:
    return "<!DOCTYPE html><body>" + "".join(f"<a {link}>file</a><br>\n" for link in links)


def write_lock(folder: Path, versions: Mapping[str, str], *sources: str) -> Path:
    """A Pipfile with all packages, its lock and exports, as `refit lock` leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = "".join(f'[[source]]\nname = "i{i}"\nurl = "{url}"\nverify_ssl = true\n' for i, url in enumerate(sources))
    (folder / "Pipfile").write_text(asked + "[packages]\n" + "".join(f'{name} = "*"\n' for name in versions))
    pipfile = read_pipfile(folder / "Pipfile")
    entries = {name: {"version": f"=={version}", "hashes": ["sha256:00"]} for name, version in versions.items()}
    lock = {"_meta": {"hash": {"sha256": pipfile.digest}, "sources": list(pipfile.sources)}, "default": entries}
    (folder / "Pipfile.lock").write_text(json.dumps(lock))
    for name, content in python_lockfile.exports(lock, pipfile).items():
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def locked(site: Site, tmp_path: Path) -> Path:
    """A folder with a lock of two packages, which the site has."""
    site.answers["/simple/six/"] = (200, JSON, page("six", "1.16", "1.17"))
    site.answers["/simple/typing-extensions/"] = (200, JSON, page("typing_extensions", "4.0"))
    return write_lock(tmp_path / "minimal", {"six": "1.17", "Typing_Extensions": "4.0"}, f"{site.url}/simple/")


def look(folder: Path, settings: Settings, terms: str = "") -> LockLook:
    return freshness.look_at_locks({folder: terms}, settings)[folder]


def test_a_lock_whose_pages_say_the_same_is_fresh(site: Site, locked: Path, settings: Settings) -> None:
    first = look(locked, settings)
    assert first.finding.verdict is Verdict.unknown
    freshness.keep(first, settings)
    site.asked.clear()
    assert look(locked, settings).finding.verdict is Verdict.same
    assert sorted(site.asked) == [("/simple/six/", 304), ("/simple/typing-extensions/", 304)]
    site.answers["/simple/six/"] = (200, JSON, page("six", "1.17", "1.16", **{"versions": ["1"], "meta": {}}))
    assert look(locked, settings).finding.verdict is Verdict.same
    assert ("/simple/six/", 200) in site.asked


def test_which_locks_are_due_is_known_without_asking_anybody(site: Site, locked: Path, settings: Settings) -> None:
    assert freshness.due([locked, locked], settings) == (locked,)
    first = look(locked, settings)
    freshness.keep(first, settings)
    asked = len(site.asked)
    assert freshness.due([locked], settings) == () and len(site.asked) == asked
    freshness.keep(replace(first, at=first.at - timedelta(days=8)), settings)
    assert freshness.due([locked], settings) == (locked,)


def test_a_lock_is_made_anew_when_its_release_excepts_a_package(site: Site, locked: Path, settings: Settings) -> None:
    freshness.keep(look(locked, settings), settings)
    finding = look(locked, settings, terms="exceptions [('six', '>=1.18')]").finding
    assert finding.verdict is Verdict.changed
    assert "release" in finding.reason


@pytest.mark.parametrize(
    "content", [page("six", "1.16", "1.17", "1.18"), page("six", "1.17"), page("six", "1.16", "1.17", yanked=True)]
)
def test_new_files_and_withdrawn_ones_are_seen(site: Site, locked: Path, settings: Settings, content: bytes) -> None:
    freshness.keep(look(locked, settings), settings)
    site.answers["/simple/six/"] = (200, JSON, content)
    changed = look(locked, settings)
    assert changed.finding == Finding(Verdict.changed, "the index says something else of six")
    assert look(locked, settings).finding.verdict is Verdict.changed  # until the lock was made anew
    freshness.keep(changed, settings)
    assert look(locked, settings).finding.verdict is Verdict.same


def test_a_page_that_vanishes_is_a_change(site: Site, locked: Path, settings: Settings) -> None:
    freshness.keep(look(locked, settings), settings)
    del site.answers["/simple/six/"]
    assert look(locked, settings).finding.verdict is Verdict.changed


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((503, "text/plain", b""), "answers 503"),
        ((200, "text/html", b"<h1>Please log in</h1>"), "names no files"),
        ((200, JSON, b'{"files": [{}]}'), "no page of an index"),
        ((200, JSON, b"{"), "can't be read"),
    ],
)
def test_an_index_in_doubt_is_unknown(
    site: Site, locked: Path, settings: Settings, answer: tuple[int, str, bytes], said: str
) -> None:
    freshness.keep(look(locked, settings), settings)
    site.answers["/simple/six/"] = answer
    finding = look(locked, settings).finding
    assert finding.verdict is Verdict.unknown
    assert said in finding.reason
    assert f"{site.url}/simple/six/" in finding.reason


def test_other_locks_are_other_questions(site: Site, locked: Path, settings: Settings, tmp_path: Path) -> None:
    freshness.keep(look(locked, settings), settings)
    moved = write_lock(tmp_path / "moved", {"six": "1.16", "Typing_Extensions": "4.0"}, f"{site.url}/simple/")
    assert look(moved, settings).finding.verdict is Verdict.unknown
    elsewhere = write_lock(tmp_path / "checkout", {"six": "1.17", "Typing_Extensions": "4.0"}, f"{site.url}/simple/")
    assert look(elsewhere, settings).finding.verdict is Verdict.same
    (elsewhere / "Pipfile").write_text("[packages]\nsix = '*'\n")
    assert "made of another Pipfile" in look(elsewhere, settings).finding.reason
    assert "can't be read" in look(tmp_path / "nowhere", settings).finding.reason


def test_the_mirror_stands_for_pypi_and_its_password_is_kept_nowhere(
    site: Site, settings: Settings, tmp_path: Path, locked: Path
) -> None:
    other = f"{site.url}/other"
    folder = write_lock(tmp_path / "both", {"six": "1.17"}, "https://pypi.org/simple", other)
    secret = SecretStr(site.url.replace("//", "//ann:hush@") + "/simple")
    with_mirror = settings.model_copy(update={"pip_index_url": secret})
    first = look(folder, with_mirror)
    # It names no source, so it can come from the first alone.
    assert [path for path, _ in site.asked] == ["/simple/six/"]
    freshness.keep(first, with_mirror)
    (file,) = settings.folder("cache", "freshness").iterdir()
    assert "hush" not in file.read_text()
    assert look(folder, with_mirror).finding.verdict is Verdict.same


def test_wheels_of_ones_own_are_looked_at(locked: Path, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    with_wheels = settings.model_copy(update={"wheel_folders": (folder,)})
    freshness.keep(look(locked, with_wheels), with_wheels)
    assert look(locked, with_wheels).finding.verdict is Verdict.same
    (folder / "six-2.0-py3-none-any.whl").touch()
    assert look(locked, with_wheels).finding == Finding(Verdict.changed, "the index says something else of wheels")


def test_pages_are_asked_for_at_once(site: Site, settings: Settings, tmp_path: Path) -> None:
    names = [f"package{number}" for number in range(simple_index.AT_ONCE)]
    site.answers |= {f"/simple/{name}/": (200, JSON, page(name, "1.0")) for name in names}
    folder = write_lock(tmp_path / "many", dict.fromkeys(names, "1.0"), f"{site.url}/simple")
    site.together = Barrier(simple_index.AT_ONCE, timeout=PATIENCE)
    assert "when this lock was made" in look(folder, settings).finding.reason
    assert not site.together.broken


@pytest.mark.slow
def test_the_locks_of_many_images_ask_for_each_page_once(site: Site, settings: Settings, tmp_path: Path) -> None:
    names = [f"package{number}" for number in range(150)]
    versions = [f"1.{number}" for number in range(200)]
    for name in names:
        site.answers[f"/simple/{name}/"] = (200, JSON, page(name, *versions))
    folders = [
        write_lock(tmp_path / str(number), dict.fromkeys(names[: 150 - number], "1.0"), f"{site.url}/simple")
        for number in range(24)
    ]
    for one in freshness.look_at_locks(dict.fromkeys(folders, ""), settings).values():
        freshness.keep(one, settings)
    site.asked = []
    looks = freshness.look_at_locks(dict.fromkeys(folders, ""), settings)
    assert {one.finding.verdict for one in looks.values()} == {Verdict.same}
    assert len(site.asked) == len(names)


def test_links_are_compared_by_what_they_name() -> None:
    one = 'href="https://a/b/six-1.whl?token=1#sha256=00" data-requires-python="&gt;=3.8"'
    same = "data-requires-python='&gt;=3.8'  href='../six-1.whl?token=2#sha256=00'"
    other = 'href="six-2.whl#sha256=01"'
    assert simple_index.digest(html_page(one, other), False) == simple_index.digest(html_page(other, same), False)
    seen = {
        simple_index.digest(html_page(text), False)
        for text in (one, one.replace("00", "01"), one.replace("3.8", "3.9"), one + ' data-yanked=""', other)
    }
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("before", "seen", "verdict"),
    [
        ({"a": "1"}, {"a": "1"}, Verdict.same),
        ({"a": "1", "b": "1"}, {"a": "1"}, Verdict.same),
        ({"a": "1"}, {"a": "2"}, Verdict.changed),
        ({"a": "1"}, {"a": "1", "b": "1"}, Verdict.unknown),
        ({"a": "1"}, {"a": None}, Verdict.unknown),
        (None, {"a": "1"}, Verdict.unknown),
    ],
)
def test_a_lock_is_the_same_only_if_all_its_pages_are(
    before: dict[str, str] | None, seen: dict[str, str | None], verdict: Verdict
) -> None:
    record = before and LockRecord(made=AT, pages={url: Page(digest=digest) for url, digest in before.items()})
    now_seen = {url: Page(digest=digest) if digest else Unreadable("down") for url, digest in seen.items()}
    assert freshness.lock_finding(record or None, now_seen, AT).verdict is verdict


@pytest.mark.parametrize(("days", "verdict"), [(-1, Verdict.changed), (7, Verdict.same), (8, Verdict.changed)])
def test_all_locks_are_made_again_after_a_week(days: int, verdict: Verdict) -> None:
    record = LockRecord(made=AT, pages={"a": Page(digest="1")})
    assert freshness.lock_finding(record, record.pages, AT + timedelta(days=days)).verdict is verdict


@pytest.mark.parametrize(
    ("attributes", "more"),
    [
        ("", {}),
        ('data-requires-python="&gt;=3.8"', {"requires-python": ">=3.8"}),
        ("data-yanked", {"yanked": True}),
        ('data-yanked="broken"', {"yanked": "broken"}),
    ],
)
def test_both_forms_of_a_page_say_the_same(attributes: str, more: dict[str, object]) -> None:
    link = f'href="https://files.example/six-1.whl#sha256=00" {attributes}'
    file = {"filename": "six-1.whl", "hashes": {"md5": "11", "sha256": "00"}, "yanked": False, **more}
    assert simple_index.digest(html_page(link), False) == simple_index.digest(json.dumps({"files": [file]}), True)
