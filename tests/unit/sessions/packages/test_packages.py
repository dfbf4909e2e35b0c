"""System packages of sessions: names, the record, and the script that installs them, beside a made-up apt."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.core.errors import RefitError, UnknownName
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.packages.model import MOST, NO_INDEX, Outcome, check_names, read_report, script
from flows.sessions.packages.store import PackageStore
from tests.support.simulated.fleet import Fleet

# It knows htop and tree. A package is installed if there is a file of its name in $THERE.
APT_GET = """\
#!/bin/sh
echo "apt-get $*" >>"$THERE/.calls"
for word; do last=$word; done
case "$*" in
  *update*) [ -z "$NO_MIRROR" ] || { echo "E: Could not resolve 'deb.example'" >&2; exit 100; } ;;
  *--simulate*) case "$last" in htop|tree) ;; *) echo "E: Unable to locate package $last" >&2; exit 100 ;; esac ;;
  *install*) [ -z "$BROKEN" ] || exit 100; for word; do case "$word" in htop|tree) : >"$THERE/$word" ;; esac; done ;;
esac
"""
DPKG_QUERY = """\
#!/bin/sh
for word; do last=$word; done
[ -e "$THERE/$last" ] && printf 'installed 1.0-%s' "$last"
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """A folder of made-up programs; beside it lies what is installed."""
    programs, there = tmp_path / "bin", tmp_path / "there"
    there.mkdir()
    programs.mkdir()
    for name, text in {"apt-get": APT_GET, "dpkg-query": DPKG_QUERY, "dpkg": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs


def run(apt: Path, *names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    text = script().replace("rm -rf /var/lib/apt/lists/*", "true")
    variables = {"PATH": f"{apt}:{os.environ['PATH']}", "THERE": str(apt.parent / "there"), **environment}
    return subprocess.run(
        ["sh", "-euc", text, "sh", *names], check=False, env=variables, capture_output=True, text=True
    )


def test_a_package_that_is_in_no_index_keeps_no_other_one_away(apt: Path) -> None:
    done = run(apt, "htop", "gone-away", "tree")
    assert done.returncode == 0, done.stderr
    assert read_report(done.stdout, ["htop", "gone-away", "tree"]) == Outcome(
        {"htop": "1.0-htop", "tree": "1.0-tree"}, {"gone-away": "Unable to locate package gone-away"}
    )


def test_where_all_is_there_no_index_is_asked(apt: Path) -> None:
    assert run(apt, "htop").returncode == 0
    calls = apt.parent / "there/.calls"
    calls.unlink()
    done = run(apt, "htop", NO_MIRROR="1")
    assert read_report(done.stdout, ["htop"]).there == {"htop": "1.0-htop"}
    assert not calls.exists()


def test_a_mirror_that_is_away_is_no_package_that_is_gone(apt: Path) -> None:
    done = run(apt, "htop", NO_MIRROR="1")
    assert done.returncode == NO_INDEX and not done.stdout


def test_packages_that_cant_be_installed_together_are_an_error(apt: Path) -> None:
    assert run(apt, "htop", BROKEN="1").returncode not in (0, NO_INDEX)


def test_only_all_of_a_report_is_one() -> None:
    said = "there htop 3.2\nmissing tree \x1b[31mE: no\nthere other 1\n junk\nthere"
    outcome = read_report(said, ["htop", "tree", "jq"])
    assert outcome.there == {"htop": "3.2"}
    assert outcome.missing.keys() == {"tree", "jq"} and outcome.missing["tree"].isprintable()


@pytest.mark.parametrize("name", ["-oDebug=1", "./a.deb", "htop=1", "a b", "", "a;b", "x" * 101, "a\n"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(RefitError, match="no name"):
        check_names(["htop", name])


def test_nobody_has_more_packages_than_a_bundle_would_be_better_for() -> None:
    assert check_names(["b", "a", "b"]) == ("b", "a")
    with pytest.raises(RefitError, match="more than"):
        check_names(f"p{number}" for number in range(MOST + 1))


@pytest.fixture
def database(sessions: Fleet) -> Iterator[Engine]:
    sessions.add(1, sessions.image("old"))
    sessions.add(2, sessions.image("old"))
    yield sessions.sessions.store.database


def test_moves_install_what_was_installed_to_the_end_and_nothing_else(database: Engine, sessions: Fleet) -> None:
    store = PackageStore(database)
    one, other = (session.name for session in sessions.sessions.store.sessions())
    store.begin(one, ["htop", "tree"], "root")
    assert [package.finished for package in store.of(one)] == [False, False] and not store.names(one)
    store.finish(one, ["htop"], "root")
    assert store.names(one) == ("htop",)
    store.begin(one, ["htop"], "somebody")  # to install it once more makes it no less there
    assert store.names(one) == ("htop",)
    store.copy(one, other)
    assert store.names(other) == ("htop",)
    assert store.forget(one, ["htop", "tree"], "root") == ("htop",)
    assert not store.of(one) and store.names(other) == ("htop",)
    kinds = (Kind.packages_installed, Kind.packages_forgotten)
    assert [event.kind for event in History(database).events(session=one, kinds=kinds)] == [*kinds]
    with pytest.raises(UnknownName):
        store.begin("nobody", ["htop"], "root")
