"""What is looked at before anything is locked again: a Debian archive and package indexes on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Barrier

import pytest
from pydantic import SecretStr

from flows.catalog.model import Base, BaseConfig
from flows.core.settings import Settings
from flows.locks import apt, debian_archive, freshness, python, simple_index
from flows.locks.debian_archive import ArchiveError
from flows.locks.freshness import Finding, LockLook, LockRecord, Verdict
from flows.locks.pipfile import read_pipfile
from flows.locks.simple_index import Page, Unreadable
from tests.support.waiting import PATIENCE, free_port, serving

AT = datetime(2026, 11, 21, 2, tzinfo=UTC)
SUITES = ("debian/dists/bookworm", "debian/dists/bookworm-updates", "debian-security/dists/bookworm-security")
EXACT = ("apt=2.6", "libc6=2.36-9", "tmux=3.3")
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Site:
    """A web server: path → status, type and body; it counts what it is asked for, and answers ETags."""

    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""
    together: Barrier | None = None


@pytest.fixture
def site() -> Iterator[Site]:
    it = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if it.together:
                it.together.wait()
            status, kind, body = it.answers.get(self.path, (404, "text/plain", b""))
            etag = f'"{hashlib.md5(body).hexdigest()}"'
            if status == 200 and self.headers.get("If-None-Match") == etag:
                status, body = 304, b""
            it.asked.append((self.path, status))
            head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nETag: {etag}\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as port:
        it.url = f"http://127.0.0.1:{port}"
        yield it


# --- System packages ------------------------------------------------------------------------------------------------


def stanza(name: str, version: str, content: str = "", **fields: str) -> str:
    digest = hashlib.sha256(f"{name} {version} {content}".encode()).hexdigest()
    more = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in fields.items())
    return f"Package: {name}\nVersion: {version}\n{more}SHA256: {digest}\nDescription: says\n Package: nothing\n"


MAIN = (
    stanza("libc6", "2.36-9", Essential="yes"),
    stanza("apt", "2.6", Depends="libc6 (>= 2.3), mail-agent | exim4:any", Pre_Depends="debconf"),
    stanza("tmux", "3.3"),
    stanza("tmux", "3.1"),
    stanza("zsh", "5.9"),
)


def publish(site: Site, suite: str, *stanzas: str, signed: str = "today", by_hash: bool = True) -> None:
    content = lzma.compress("\n".join(stanzas).encode())
    digest = hashlib.sha256(content).hexdigest()
    folder = f"/{suite}/main"
    release = f"Date: {signed}\nAcquire-By-Hash: {'yes' if by_hash else 'no'}\nSHA256:\n"
    for architecture in ("amd64", "arm64"):
        release += f" {digest} {len(content)} main/binary-{architecture}/Packages.xz\n"
        name = f"by-hash/SHA256/{digest}" if by_hash else "Packages.xz"
        site.answers[f"{folder}/binary-{architecture}/{name}"] = (200, "", content)
    site.answers[f"/{suite}/InRelease"] = (200, "text/plain", release.encode())


@pytest.fixture
def mirror(site: Site, settings: Settings) -> Settings:
    """Settings with a mirror whose suites are published on the site."""
    publish(site, SUITES[0], *MAIN)
    publish(site, SUITES[1], by_hash=False)
    publish(site, SUITES[2])
    return settings.model_copy(update={"debian_mirror": site.url})


@pytest.fixture
def base(tmp_path: Path) -> Base:
    config = BaseConfig(family="deb", suite="bookworm", pythons=("py311",))
    return Base("deb12", tmp_path, "Debian", config, ("tmux",))


@dataclass
class Resolver:
    """What resolves anew: counts how often it had to."""

    exact: tuple[str, ...] = EXACT
    calls: int = 0

    def __call__(self, base: Base, settings: Settings) -> tuple[str, ...]:
        self.calls += 1
        return self.exact


def lists_asked(site: Site) -> list[str]:
    return [path for path, _ in site.asked if "Packages" in path or "by-hash" in path]


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_a_mirror_that_is_busy_is_asked_again(site: Site, base: Base, mirror: Settings, status: int) -> None:
    class Busy(dict[str, tuple[int, str, bytes]]):
        def get(self, path: str, _: object) -> tuple[int, str, bytes]:  # type: ignore[override]
            return self[path] if (path, status) in site.asked else (status, "text/plain", b"busy")

    at_once = apt.state(base, mirror)
    site.answers = Busy(site.answers)
    assert apt.state(base, mirror) == at_once


def test_packages_are_resolved_once_while_the_mirror_says_the_same(site: Site, base: Base, mirror: Settings) -> None:
    anew = Resolver()
    assert freshness.look_at_system(base, mirror).finding.verdict is Verdict.unknown
    assert freshness.resolve(base, mirror, anew) == EXACT
    assert len(lists_asked(site)) == 2, "two of the three lists are the same, empty one"
    site.asked.clear()
    assert freshness.resolve(base, mirror, anew) == EXACT
    publish(site, SUITES[2], signed="tomorrow")
    assert freshness.resolve(base, mirror, anew) == EXACT
    assert anew.calls == 1
    assert lists_asked(site) == []
    assert freshness.look_at_system(replace(base, packages=("zsh",)), mirror).finding.verdict is Verdict.unknown


def test_a_list_is_read_from_the_mirror_once_for_all_sets_of_packages(site: Site, base: Base, mirror: Settings) -> None:
    freshness.resolve(base, mirror, Resolver())
    site.asked.clear()
    other = replace(base, packages=("zsh",))
    assert freshness.resolve(other, mirror, Resolver()) == EXACT
    assert lists_asked(site) == []
    assert freshness.look_at_system(other, mirror).finding.verdict is Verdict.same


def test_a_kept_list_is_forgotten_a_week_after_its_last_use(site: Site, base: Base, mirror: Settings) -> None:
    freshness.resolve(base, mirror, Resolver())
    lists = mirror.folder("cache", "debian")
    before = {file.name for file in lists.iterdir()} - {"lock"}
    for name in before:
        os.utime(lists / name, (0, time.time() - 8 * 24 * 3600))
    publish(site, SUITES[0], *MAIN, stanza("zoo", "1"))
    freshness.resolve(base, mirror, Resolver())
    after = {file.name for file in lists.iterdir()} - {"lock"}
    assert len(before) == 2 and not before & after


def test_a_list_that_would_fill_the_disk_is_not_kept(
    site: Site, base: Base, mirror: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian_archive, "_MOST_KEPT", 64)
    assert freshness.resolve(base, mirror, Resolver()) == EXACT
    assert freshness.look_at_system(base, mirror).known is None
    assert not [file for file in mirror.folder("cache", "debian").iterdir() if file.stat().st_size]


def test_all_suites_are_asked_at_once(site: Site, base: Base, mirror: Settings) -> None:
    site.together = Barrier(len(SUITES), timeout=PATIENCE)
    assert len(freshness.look_at_system(base, mirror).releases) == len(SUITES)
    assert not site.together.broken


def test_only_the_list_that_changed_is_read_and_only_once(site: Site, base: Base, mirror: Settings) -> None:
    anew = Resolver()
    freshness.resolve(base, mirror, anew)
    site.asked.clear()
    publish(site, SUITES[2], stanza("zsh", "5.9.1"))
    assert freshness.resolve(base, mirror, anew) == freshness.resolve(base, mirror, anew) == EXACT
    assert anew.calls == 1
    assert len(lists_asked(site)) == 1


@pytest.mark.parametrize(
    ("new", "moved"),
    [
        (stanza("tmux", "3.3-1+deb12u1"), "tmux 3.3 → 3.3-1+deb12u1"),
        (stanza("tmux", "3.3", "other content"), "tmux 3.3 → 3.3"),
        (stanza("exim4", "4"), "exim4 (not there) → 4"),
        (stanza("postfix", "3", Provides="smtpd, mail-agent (= 1)"), "postfix (not there) → 3"),
        (stanza("init-system", "1", Essential="yes"), "init-system (not there) → 1"),
    ],
    ids=["a version", "a file", "an alternative", "a provider", "an essential package"],
)
def test_what_could_move_the_set_is_seen(site: Site, base: Base, mirror: Settings, new: str, moved: str) -> None:
    anew = Resolver()
    freshness.resolve(base, mirror, anew)
    publish(site, SUITES[2], new)
    assert freshness.look_at_system(base, mirror).finding == Finding(Verdict.changed, f"the mirror has moved {moved}")
    freshness.resolve(base, mirror, anew)
    assert anew.calls == 2
    assert freshness.look_at_system(base, mirror).finding.verdict is Verdict.same


@pytest.mark.parametrize(
    ("gone", "verdict"), [(MAIN[2], Verdict.changed), (MAIN[3], Verdict.same), (MAIN[4], Verdict.same)]
)
def test_what_goes_counts_only_if_it_was_chosen(
    site: Site, base: Base, mirror: Settings, gone: str, verdict: Verdict
) -> None:
    freshness.resolve(base, mirror, Resolver())
    publish(site, SUITES[0], *(one for one in MAIN if one != gone))
    assert freshness.look_at_system(base, mirror).finding.verdict is verdict


def spoil_list(site: Site) -> None:
    publish(site, SUITES[2], stanza("zsh", "6"))
    for path in [path for path in site.answers if path.startswith(f"/{SUITES[2]}/main")]:
        site.answers[path] = (200, "", lzma.compress(b""))


def lose_suite(site: Site) -> None:
    del site.answers[f"/{SUITES[1]}/InRelease"]


def intercept(site: Site) -> None:
    site.answers[f"/{SUITES[0]}/InRelease"] = (200, "text/html", b"<h1>Please log in</h1>")


@pytest.mark.parametrize("break_it", [spoil_list, lose_suite, intercept])
def test_a_mirror_in_doubt_is_unknown(
    site: Site, base: Base, mirror: Settings, break_it: Callable[[Site], None]
) -> None:
    anew = Resolver()
    freshness.resolve(base, mirror, anew)
    break_it(site)
    found = freshness.look_at_system(base, mirror).finding
    assert found.verdict is Verdict.unknown
    assert site.url in found.reason
    freshness.resolve(base, mirror, anew)
    assert anew.calls == 2


def test_a_mirror_that_is_down_is_unknown(base: Base, settings: Settings) -> None:
    down = settings.model_copy(update={"debian_mirror": f"http://127.0.0.1:{free_port()}"})
    assert "doesn't answer" in freshness.look_at_system(base, down).finding.reason


def test_a_record_that_is_spoilt_or_old_or_from_the_future_is_not_trusted(
    site: Site, base: Base, mirror: Settings
) -> None:
    freshness.resolve(base, mirror, Resolver())
    (file,) = mirror.folder("cache", "freshness").iterdir()
    record = json.loads(file.read_text())
    for made, verdict in (
        (datetime.now(UTC) - timedelta(days=6), Verdict.same),
        (datetime.now(UTC) - timedelta(days=8), Verdict.changed),
        (datetime.now(UTC) + timedelta(days=1), Verdict.changed),
    ):
        file.write_text(json.dumps({**record, "made": made.isoformat()}))
        assert freshness.look_at_system(base, mirror).finding.verdict is verdict
    file.write_text("{")
    assert freshness.look_at_system(base, mirror).finding.verdict is Verdict.unknown


def test_dependencies_are_named_with_alternatives_and_without_versions() -> None:
    packages = [*debian_archive.unpacked(io.BytesIO(lzma.compress("\n".join(MAIN).encode())))]
    assert debian_archive.needed(packages, {"apt"}) == {"libc6", "mail-agent", "exim4", "debconf"}
    assert debian_archive.offers(packages, {"tmux"}).keys() == {"libc6", "tmux"}


def test_relations_that_nobody_writes_are_read_at_once() -> None:
    stanzas = [
        b"Package: long\nDepends: apt" + b" " * 500_000 + b"x, tmux",
        b"Package: folded\nDepends: apt (>= 1) [amd64 !arm64],\n zsh:any <!nocheck> |\n\tbash",
        b"Package: odd\nDepends: (((,|,, [, zip",
    ]
    assert debian_archive.needed(stanzas, {"long"}) >= {"tmux"}
    assert debian_archive.needed(stanzas, {"folded"}) == {"apt", "zsh", "bash"}
    assert "zip" in debian_archive.needed(stanzas, {"odd"})


def test_a_field_on_several_lines_is_kept_as_a_whole(site: Site, base: Base, mirror: Settings) -> None:
    folded = stanza("kit", "1", Essential="yes", Depends="apt,\n tmux")
    publish(site, SUITES[0], *MAIN, folded)
    with debian_archive.connection(mirror) as client:
        release = debian_archive.release(client, f"{site.url}/{SUITES[0]}/InRelease", "amd64")
        packages = debian_archive.packages(client, release, mirror.folder("cache", "debian"))
        assert debian_archive.needed(packages, {"kit"}) == {"apt", "tmux"}
        assert not any(b"Description" in stanza for stanza in packages)


@pytest.mark.parametrize("signed", ["", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n"])
def test_an_index_is_read_with_its_signature_and_without(site: Site, mirror: Settings, signed: str) -> None:
    path = f"/{SUITES[0]}/InRelease"
    end = "-----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----\n" if signed else ""
    site.answers[path] = (200, "text/plain", f"{signed}{site.answers[path][2].decode()}{end}".encode())
    with debian_archive.connection(mirror) as client:
        found = debian_archive.release(client, f"{site.url}{path}", "arm64")
        assert "/main/binary-arm64/by-hash/SHA256/" in found.packages and found.packages.endswith(found.digest)
        with pytest.raises(ArchiveError, match="no list of packages for sparc"):
            debian_archive.release(client, f"{site.url}{path}", "sparc")


# --- Python packages ------------------------------------------------------------------------------------------------


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
    for name, content in python.exports(lock, pipfile).items():
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
    found = look(locked, settings, terms="exceptions [('six', '>=1.18')]").finding
    assert found.verdict is Verdict.changed
    assert "release" in found.reason


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
    found = look(locked, settings).finding
    assert found.verdict is Verdict.unknown
    assert said in found.reason
    assert f"{site.url}/simple/six/" in found.reason


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
    ("known", "seen", "verdict"),
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
    known: dict[str, str] | None, seen: dict[str, str | None], verdict: Verdict
) -> None:
    record = known and LockRecord(made=AT, pages={url: Page(digest=digest) for url, digest in known.items()})
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
