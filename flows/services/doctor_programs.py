"""The doctor's findings on Python and on the programs that Refit runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.host import jump_enclosure, tools, user_namespace
from flows.services.doctor_findings import Finding
from flows.sessions import engines

PYTHON = (3, 11)


@dataclass(frozen=True)
class Program:
    """A program that Refit runs: what for, the least version, its packages, how it is asked for its version."""

    name: str
    purpose: str
    least: str = "0"
    apt: str = ""
    dnf: str = ""
    ask: str = "--version"

    def mend(self) -> str:
        """The command that installs it."""
        if tools.program("dnf"):
            return f"dnf install {self.dnf or self.name}"
        return f"apt-get install --no-install-recommends {self.apt or self.name}"


_IPTABLES = Program("iptables", "publishes ports of containers")


PROGRAMS = (
    Program("buildah", "builds images", "1.28"),
    Program("podman", "runs sessions", "4.3"),
    Program("skopeo", "copies images", "1.9"),
    Program("catatonit", "is process 1 of containers"),
    Program("mmdebstrap", "bootstraps Debian bases", "1.3"),
    Program("docker-registry", "runs the embedded registry", "2.8", dnf="docker-distribution"),
    Program("rsync", "copies homes", "3.2"),
    Program("bwrap", "isolates the programs that read and write homes", "0.5", apt="bubblewrap", dnf="bubblewrap"),
    Program("git", "manages the catalog's repository", "2.30"),
    _IPTABLES,
    Program("ss", "ends connections to sessions that are stopped", apt="iproute2", dnf="iproute", ask="-V"),
    Program("nft", "keeps sessions from each other and from this machine", "0.9.4", "nftables", "nftables"),
    Program("nsenter", "closes ports of sessions before they are stopped", apt="util-linux", dnf="util-linux"),
    Program("ssh", "logs in to sessions", apt="openssh-client", dnf="openssh-clients", ask="-V"),
    Program("haproxy", "forwards ssh to sessions", "2.6", ask="-v"),
)


# Those that a Refit which is a Pod calls: stages have the versions of the others in their keys.
_OF_PODS = ("buildah", "mmdebstrap")


# Without it there are no pictures of what is built, and nothing else is missing.
DOT = Program("dot", "draws the stages of a release", apt="graphviz", dnf="graphviz", ask="-V")


# 8.5 has bounds for logins from one address.
SSHD = Program(
    "sshd", "runs the jump host for ssh from other machines", "8.5", "openssh-server", "openssh-server", ask="-V"
)


def python(_: Settings) -> Iterable[Finding]:
    """The Python that Refit itself runs on."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", sys.version_info[:2] == PYTHON, version, "make the virtual environment with Python 3.11.")


def programs(settings: Settings) -> Iterable[Finding]:
    """The programs that Refit runs, and their versions."""
    needed = [each for each in PROGRAMS if each.name in _OF_PODS] if engines.is_pod(settings) else [*PROGRAMS]
    yield from at_once(lambda program: judge_program(program, _says(program)), needed, len(needed))


def jump(settings: Settings) -> Iterable[Finding]:
    """Whether people could come in by ssh from their own machines, where that is wanted."""
    if not settings.jump_wanted:
        return
    if os.geteuid() != 0:
        try:
            uid = user_namespace.uid().outer
        except user_namespace.NoNamespace as error:
            yield Finding("way in by ssh", False, error.why, f"{error.hint} Or set `jump_port` to 0.")
            return
        if why := jump_enclosure.lack(settings.folder("services", "jump")):
            yield Finding("way in by ssh", False, why, jump_enclosure.HINT)
            return
        yield Finding("way in by ssh", True, f"its sshd runs with uid {uid}", "")
    yield judge_program(SSHD, _says(SSHD))


def pictures(_: Settings) -> Iterable[Finding]:
    """Whether the stages of a release can be drawn."""
    yield judge_program(DOT, _says(DOT))


def _says(program: Program) -> str | None:
    """The version that a program prints; none: it isn't installed."""
    path = tools.program(program.name)
    if path is None:
        return None
    try:
        output = command.run([path, program.ask], limit=10)
        return output.stdout or output.stderr
    except ProgramFailed as error:
        return error.tail


def judge_program(program: Program, says: str | None) -> Finding:
    """Whether a program that says this about its version will do."""
    if says is None:
        return Finding(program.name, False, f"is not installed; it {program.purpose}", program.mend())
    version = re.search(r"\d+(\.\d+)+", says)
    if not version:
        return Finding(program.name, False, f"doesn't tell its version: {says.strip()[:80]}", program.mend())
    if Version(version[0]) < Version(program.least):
        return Finding(program.name, False, f"{version[0]}; at least {program.least} is needed", program.mend())
    return Finding(program.name, True, version[0])
