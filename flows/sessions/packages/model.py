"""System packages of sessions: plain data, and what runs to install them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flows.core.errors import RefitError
from flows.core.formatting import on_a_line, some

MOST = 100
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.+_-]{0,99}", re.ASCII)
# Exit code of the script where no index answers.
NO_INDEX = 75
_REPORT = re.compile(r"(there|missing) (\S+) ?(.*)", re.ASCII)


@dataclass(frozen=True)
class Package:
    """A system package of a session.

    Attributes:
        name: of the package.
        by: the person who wanted it.
        at: when.
        finished: whether it was installed to the end; if not, moves leave it out.
    """

    name: str
    by: str
    at: datetime
    finished: bool


@dataclass(frozen=True)
class Outcome:
    """The outcome of an installation.

    Attributes:
        there: name → version of the packages that are there now.
        missing: name → why it isn't, on a line.
    """

    there: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The outcome in words; empty: there was nothing to install."""
        installed = f"installed again: {', '.join(self.there)}" if self.there else ""
        gone = [f"{name} ({why})" for name, why in self.missing.items()]
        return "; ".join(filter(None, (installed, f"not installed again: {some(gone)}" if gone else "")))


class NoIndex(RefitError):
    """No index of system packages answers, which says nothing of the packages."""


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of packages, each once; neither versions nor options nor files are names.

    Raises:
        RefitError: one is no name, or there are too many.
    """
    chosen = tuple(dict.fromkeys(names))
    if wrong := [name for name in chosen if not _NAME.fullmatch(name)]:
        raise RefitError(
            f"{on_a_line(wrong[0])!r} is no name of a system package.",
            why="A name has letters, digits and .+_- alone, and begins with a letter or digit.",
            hint="name packages without versions: each image gets the version that its system has then.",
        )
    if len(chosen) > MOST:
        raise RefitError(
            f"{len(chosen)} packages are more than the {MOST} that a session may have.",
            hint="put them into a bundle: `refit session capture` makes one.",
        )
    return chosen


# Our own lines go to the standard output, and nothing else does. Where all is there, no index is asked. Nothing of the
# image is removed, and a package that can't be had keeps no other one away. Work of a killed attempt is ended first.
_BEGIN = "exec 3>&1 1>&2; export LC_ALL=C; lacks="
_APT = """
version_of() {
  dpkg-query --show --showformat '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'
}
tell() { for name; do echo "there $name $(version_of "$name")" >&3; done; }
for name; do [ -n "$(version_of "$name")" ] || lacks=yes; done
[ -n "$lacks" ] || { tell "$@"; exit 0; }
dpkg --configure -a
apt-get -q update -o APT::Update::Error-Mode=any || exit 75
get() { apt-get -qy --no-install-recommends --no-remove -o Dpkg::Options::=--force-confold "$@"; }
set -- "$@" --; wanted=
while [ "$1" != -- ]; do
  if why=$(get install --simulate "$1" 2>&1); then wanted="$wanted $1"; else say_missing "$1" "$why"; fi; shift
done
[ -z "$wanted" ] || get install $wanted
apt-get clean; rm -rf /var/lib/apt/lists/*
tell $wanted
"""
_DNF = """
version_of() { rpm --query --queryformat '%{VERSION}-%{RELEASE}' "$1" || :; }
tell() { for name; do echo "there $name $(version_of "$name")" >&3; done; }
for name; do rpm --query --quiet "$name" || lacks=yes; done
[ -n "$lacks" ] || { tell "$@"; exit 0; }
dnf --quiet makecache || exit 75
set -- "$@" --; wanted=
while [ "$1" != -- ]; do
  if [ -n "$(dnf --quiet repoquery --whatprovides "$1")" ]; then wanted="$wanted $1"
  else say_missing "$1" "E: no repository has it"; fi; shift
done
[ -z "$wanted" ] || dnf --assumeyes --setopt=install_weak_deps=False install $wanted
dnf clean all
tell $wanted
"""
_MISSING = """
say_missing() {
  echo "missing $1 $(printf '%s' "$2" | grep '^E:' | head -n 1 | cut -c 1-300)" >&3
}
"""


def script() -> str:
    """The shell script that installs the packages that it gets as arguments, and says what became of each."""
    return "\n".join(
        (
            _BEGIN,
            _MISSING,
            f"if command -v apt-get >/dev/null; then {_APT}",
            f"elif command -v dnf >/dev/null; then {_DNF}",
            'else for name; do echo "missing $name its image has neither apt nor dnf" >&3; done; fi',
        )
    )


def read_report(output: str, names: Sequence[str]) -> Outcome:
    """The outcome as the script says it; of a package of which it says nothing, nobody knows."""
    installed, missing = dict[str, str](), dict[str, str]()
    for line in output.splitlines():
        if (match := _REPORT.fullmatch(line)) and match[2] in names:
            if match[1] == "there":
                installed[match[2]] = on_a_line(match[3])
            else:
                missing[match[2]] = on_a_line(match[3].removeprefix("E: ")) or "it can't be had"
    unsaid = {name: "nothing is said of it" for name in names if name not in installed and name not in missing}
    return Outcome(installed, {**missing, **unsaid})
