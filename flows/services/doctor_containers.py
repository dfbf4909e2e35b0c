"""The doctor's findings on containers: root, the kernel, limits, walls between sessions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed, ProgramMissing
from flows.core.settings import Settings
from flows.host import tools
from flows.services.doctor_findings import Finding
from flows.services.doctor_programs import _IPTABLES, Program, _says, judge_program
from flows.sessions.containers.ingress import input_rules, restoring
from flows.sessions.containers.networks import SessionNetwork, table
from flows.sessions.homes import enclosed

OPEN_FILES = 4096


def root(_: Settings) -> Iterable[Finding]:
    """Whether containers can be run as root."""
    if os.geteuid() == 0:
        yield Finding("root", True, "this is root")
        return
    try:
        command.run(["true"], root=True, limit=10)
        yield Finding("root", True, "by sudo, without a password")
    except (ProgramMissing, ProgramFailed):
        yield Finding(
            "root", False, "sudo is missing or wants a password", "run `sudo -v` first, or allow NOPASSWD in sudoers."
        )


def containers(settings: Settings) -> Iterable[Finding]:
    """An OCI runtime that works, networks, limits, and the isolation of builds."""
    try:
        facts = tools.facts(settings)
    except RefitError as error:
        yield Finding("containers", False, f"{error.what} {error.why}".strip(), error.hint)
        return
    runtime = Program(facts.runtime, "runs containers")
    version = judge_program(runtime, _says(runtime)).seen
    works = f"{facts.runtime} {version} with {facts.cgroup_manager}; builds in {facts.isolation}"
    yield Finding("runtime", True, works)
    if tools.program("dnf"):
        hint = "dnf install netavark aardvark-dns"
    else:
        hint = "apt-get install --no-install-recommends containernetworking-plugins iptables"
    yield Finding("network", not facts.network_problem, facts.network_problem or "containers reach a bridge", hint)
    yield judge_open_files(facts.open_files)
    yield judge_limits(facts.limits_problem)
    yield judge_call_filter(facts.seccomp_problem)


def judge_limits(problem: str) -> Finding:
    """Whether sessions can be held to limits of memory and CPU, as this problem of an attempt says."""
    hint = "let the kernel account for memory and CPU of groups (cgroup_enable=memory on its command line)."
    seen = f"a session may take all of the machine's memory: {problem}" if problem else "hold a container"
    return Finding("limits", not problem, seen, hint)


def judge_call_filter(problem: str) -> Finding:
    """Whether sessions can be kept from making user namespaces, as this problem of an attempt says."""
    hint = "install the package with Podman's seccomp profile (containers-common, golang-github-containers-common)."
    seen = f"sessions can make user namespaces: {problem}" if problem else "sessions can make no user namespaces"
    return Finding("call filter", not problem, seen, hint)


def judge_open_files(limit: int) -> Finding:
    """Whether this hard limit of open files is enough for sessions."""
    hint = f"raise the hard limit of open files to {OPEN_FILES} or more, e.g. in /etc/security/limits.d/."
    return Finding("open files", limit >= OPEN_FILES, f"hard limit {limit}", hint)


def kernel(settings: Settings) -> Iterable[Finding]:
    """The features that the kernel must have."""
    with suppress(RefitError):
        tools.facts(settings)  # starting a container loads the module
    overlay = "\toverlay\n" in Path("/proc/filesystems").read_text()
    yield Finding("overlay", overlay, "in the kernel" if overlay else "not in the kernel", "modprobe overlay")
    file = Path("/proc/sys/user/max_user_namespaces")
    spaces = int(file.read_text()) if file.exists() else 0
    hint = "sysctl user.max_user_namespaces=15000, and keep it in /etc/sysctl.d/."
    yield Finding("user namespaces", spaces > 0, f"at most {spaces}", hint)


def enclosure(_: Settings) -> Iterable[Finding]:
    """Whether what root does in homes can be kept from everything else, without which nothing is done in them."""
    try:
        problem = enclosed.unusable()
    except ProgramMissing as error:
        problem = error.what
    hint = "in a container, let it make namespaces of mounts (CAP_SYS_ADMIN, and a seccomp profile that lets it mount)."
    seen = f"no session can be moved, and no home removed: {problem[-200:]}" if problem else "bwrap works"
    yield Finding("access to homes", not problem, seen, hint)


def ingress(_: Settings) -> Iterable[Finding]:
    """Whether a session can be closed to its people, as it is before it is stopped: in a network of its own."""
    if any(tools.program(name) is None for name in ("iptables-restore", "unshare")):
        yield Finding("closing sessions", False, "iptables is not installed", _IPTABLES.mend())
        return
    try:
        command.run(["unshare", "--net", "--", *restoring()], root=True, stdin=input_rules([8000, 2222]), limit=10)
        yield Finding("closing sessions", True, "iptables works in a container's network")
    except (ProgramFailed, ProgramMissing) as error:
        message = error.tail.strip() if isinstance(error, ProgramFailed) else error.what
        hint = "modprobe -a ip_tables iptable_filter xt_multiport, or install the iptables that fits the kernel."
        yield Finding("closing sessions", False, f"no session can be moved: {message[-200:]}", hint)


def walls(settings: Settings) -> Iterable[Finding]:
    """Whether sessions can be kept from each other and from this machine: in a network of its own."""
    if not settings.walls:
        yield Finding("walls", True, "not wanted (`walls: false`): sessions reach each other and this machine")
    elif (nft := tools.program("nft")) and tools.program("unshare"):
        try:
            rules = table(SessionNetwork("0" * 12, (5432,)), ("192.0.2.1", "2001:db8::1"))
            command.run(["unshare", "--net", "--", nft, "--file", "-"], root=True, stdin=rules, limit=10)
            yield Finding("walls", True, "nftables works")
        except ProgramFailed as error:
            hint = "`modprobe -a nf_tables nf_conntrack`, or `walls: false` in settings.yaml."
            yield Finding("walls", False, f"no session can start: {error.tail.strip()[-200:]}", hint)
