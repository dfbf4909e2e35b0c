"""Faults of the cluster of these tests: its API server is killed, its kubelets are, its Pods are deleted or evicted."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from flows.core.database import open_database
from flows.core.leases import Lease
from flows.core.settings import Settings
from flows.migrations.journal import Also, Journal
from flows.migrations.move import Entry, Move, Phase
from tests.support.cluster import FOLDER, kube, kubectl, variables
from tests.support.waiting import wait_until

_RUN = FOLDER / "run"


class DisturbedJournal(Journal):
    """A journal whose move is disturbed once, as soon as a step has come to a phase."""

    def __init__(self, settings: Settings, step: str, phase: Phase, disturb: Callable[[], object]) -> None:
        super().__init__(open_database(settings.database))
        self._when, self._disturb, self.disturbed = (step, phase), disturb, False

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        super().write(held, move, entry, also)
        self._at(entry)

    def note(self, held: Lease, move: Move, entry: Entry) -> None:
        super().note(held, move, entry)
        self._at(entry)

    def _at(self, entry: Entry) -> None:
        if (entry.step, entry.phase) == self._when and not self.disturbed:
            self.disturbed = True
            self._disturb()


def kill_api_server(away: float) -> Thread:
    """SIGKILL for the API server, which is started again as it was after some seconds; ends when it answers."""
    file = _RUN / "kube-apiserver.pid"
    pid = int(file.read_text())
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    os.kill(pid, signal.SIGKILL)

    def start() -> None:
        with (_RUN / "log" / "kube-apiserver.log").open("ab") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=variables())
        file.write_text(f"{process.pid}\n")
        wait_until(_answers)

    def later() -> None:
        wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())
        subprocess.run(["sleep", str(away)], check=True)
        start()

    thread = Thread(target=later)
    thread.start()
    return thread


def _answers() -> bool:
    call = [FOLDER / "bin" / "kubectl", f"--kubeconfig={_RUN}/admin.kubeconfig", "get", "--raw", "/readyz"]
    return subprocess.run(call, check=False, capture_output=True).returncode == 0


def kill_kubelet(node: str, away: float) -> Thread:
    """SIGKILL for the kubelet of a node, which is started again as it was after some seconds."""
    pid = kube("node-exec", node, "pidof", "kubelet").split()[0]
    argv = kube("node-exec", node, "cat", f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    kube("node-exec", node, "kill", "-9", pid)

    def later() -> None:
        subprocess.run(["sleep", str(away)], check=True)
        begin = 'export PATH="$1:$PATH"; shift; setsid "$@" >/dev/null 2>&1 </dev/null &'
        kube("node-exec", node, "sh", "-c", begin, "sh", str(FOLDER / "bin"), *argv)

    thread = Thread(target=later)
    thread.start()
    return thread


def evict(pod: str, slot: str) -> None:
    """Let kubelet itself evict a Pod: its program writes more into a folder in memory than the Pod may have there."""
    fill = "head -c 3000000 /dev/zero >/run/refit/slots/too-much"
    kubectl("exec", pod, "-c", slot, "--", "sh", "-c", fill)
    wait_until(lambda: kubectl("get", pod, "-o", "jsonpath={.status.phase}") == "Failed")


def slow_etcd(over: Event, stopped: float = 0.3, runs: float = 0.3) -> None:
    """Let etcd work for a moment and stand still for a moment, again and again, until it is over."""
    pid = int((_RUN / "etcd.pid").read_text())
    try:
        while not over.wait(runs):
            os.kill(pid, signal.SIGSTOP)
            over.wait(stopped)
            os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)
