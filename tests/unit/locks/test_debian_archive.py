"""Whether packages of Debian have to be resolved anew: an archive on loopback is asked."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from flows.catalog.model import Base, BaseConfig
from flows.core.settings import Settings
from flows.locks import apt, debian_archive, freshness
from flows.locks.debian_archive import ArchiveError
from flows.locks.freshness import Finding, Verdict
from tests.support.site import Site
from tests.support.waiting import PATIENCE, free_port

SUITES = ("debian/dists/bookworm", "debian/dists/bookworm-updates", "debian-security/dists/bookworm-security")
EXACT = ("apt=2.6", "libc6=2.36-9", "tmux=3.3")


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
    """A resolver: counts how often it had to."""

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
    assert freshness.look_at_system(base, mirror).record is None
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
    finding = freshness.look_at_system(base, mirror).finding
    assert finding.verdict is Verdict.unknown
    assert site.url in finding.reason
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
        result = debian_archive.release(client, f"{site.url}{path}", "arm64")
        assert "/main/binary-arm64/by-hash/SHA256/" in result.packages and result.packages.endswith(result.digest)
        with pytest.raises(ArchiveError, match="no list of packages for sparc"):
            debian_archive.release(client, f"{site.url}{path}", "sparc")
