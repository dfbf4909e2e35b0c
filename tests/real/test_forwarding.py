"""A rule that outlives its container, made by really killing one."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import psutil

from flows.core import command
from flows.core.command import ProcessId
from flows.core.settings import Settings, Span
from flows.host import forwarding, tools
from flows.host.forwarding import Forwarding
from flows.services import doctor
from flows.services.doctor import Finding
from tests.conftest import free_port, wait_until
from tests.machine import private_home


def kill(container: str) -> None:
    """Kill supervisor and container at once, so that nobody cleans up."""
    processes = [
        process for process in psutil.process_iter(["cmdline"]) if container in (process.info["cmdline"] or ())
    ]
    pids = [str(found.pid) for process in processes for found in (process, *process.children(recursive=True))]
    command.run(["kill", "-KILL", *pids], root=True)
    wait_until(lambda: not any(ProcessId.of(int(pid)) for pid in pids))


def of_container(container: str) -> list[Forwarding]:
    return [found for found in forwarding.forwardings() if found.container == container]


def finding(settings: Settings) -> Finding:
    [found] = doctor.forwardings(settings)
    return found


def test_a_rule_whose_container_was_killed_is_found_avoided_and_can_be_removed(tmp_path: Path) -> None:
    port, init = free_port(), tools.program("catatonit")
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    shutil.copy(str(init), tree / "bin" / "catatonit")
    with private_home(tmp_path / "home", free_port(), session_ports=Span(first=port, last=port)) as settings:
        options = ["--detach", "--rootfs", "--publish", f"127.0.0.1:{port}:80", *tools.run_limits(settings)]
        started = command.run([*tools.podman(settings), "run", *options, tree, "/bin/catatonit", "-P"], root=True)
        container = started.stdout.strip()
        assert [found.ports for found in of_container(container)] == [(port,)]
        assert container not in {found.container for found in forwarding.stale()}
        assert finding(settings).ok

        kill(container)

        [rule] = of_container(container)
        assert rule in forwarding.stale() and port in forwarding.taken_ports()
        seen = finding(settings)
        assert not seen.ok and str(port) in seen.seen
        command.run(shlex.split(seen.fix), root=True)
        assert finding(settings).ok and of_container(container) == []
