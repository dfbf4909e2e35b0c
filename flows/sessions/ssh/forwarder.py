"""The forwarder for ssh: one HAProxy for all sessions, with a port for each, whichever container it is in now.

It outlives containers, so that a session's port is the same before and after a move. Which ports it listens on stands
in one file, where each of them leads in another; both are read when it starts, and changes reach it while it runs.
Connections that come while a session is in no container wait for `WAIT`.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.core import fence
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.settings import Settings
from flows.core.waiting import wait_until

WAIT = "5s"
RELOAD_SECONDS = 10.0
# Seconds without effect, after which it is told once more to read its ports.
_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 5.0
_PORTS, _ADDRESSES = "ports.cfg", "addresses"
_COMMANDS, _MASTER, HEALTH = "commands.sock", "master.sock", "health.sock"

# Paths of sockets must be short, so they start at the folder in which it runs.
_CONFIGURATION = f"""\
global
    fd-hard-limit 8000
    stats socket unix@./{_COMMANDS} mode 600 level admin expose-fd listeners
defaults
    timeout connect 10s
    timeout client 24d
    timeout server 24d
frontend health
    mode http
    bind unix@./{HEALTH} mode 600
    http-request return status 200
backend sessions
    mode tcp
    option srvtcpka
    server session 0.0.0.0:0
"""
_FRONTEND = f"""\
frontend ssh
    mode tcp
    option clitcpka
    default_backend sessions
    tcp-request inspect-delay {WAIT}
    tcp-request connection set-var(sess.port) dst_port
    acl there var(sess.port),map_int(./{_ADDRESSES}) -m found
    tcp-request content set-dst var(sess.port),map_int(./{_ADDRESSES}),field(1,:) if there
    tcp-request content set-dst-port var(sess.port),map_int(./{_ADDRESSES}),field(2,:) if there
    tcp-request content accept if there
    tcp-request content reject if WAIT_END
"""


class Forwarder:
    """Tells the forwarder of this machine what it has to do; orders that come before it runs are read later."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.folder("services", "forwarder")

    @property
    def argv(self) -> tuple[str, ...]:
        """The program; `folder` is where it runs."""
        files = [word for name in ("haproxy.cfg", _PORTS) for word in ("-f", str(self.folder / name))]
        return ("haproxy", "-W", "-db", "-S", f"unix@./{_MASTER},mode,600", *files)

    @property
    def files(self) -> Mapping[Path, str]:
        """The files that it reads and that never change."""
        return {self.folder / "haproxy.cfg": _CONFIGURATION}

    @property
    def needed(self) -> bool:
        """Whether this machine ever needed it: since some session got its first key."""
        return (self.folder / _PORTS).exists()

    def begin(self) -> None:
        """Let this machine need it from now on, though no session has a key yet."""
        with self._alone():
            for name in (_PORTS, _ADDRESSES):
                (self.folder / name).touch(mode=0o600)

    def addresses(self) -> dict[int, str]:
        """Where its ports lead now: port → `host:port`; those that lead nowhere are missing."""
        return parse(_read(self.folder / _ADDRESSES))

    def listen(self, ports: Iterable[int]) -> None:
        """Listen on these ports and no others; connections that are open stay so.

        Raises:
            RefitError: it runs, and doesn't get one of them.
        """
        numbers = sorted(ports)
        with self._alone():
            fence.check()
            text = configuration(numbers)
            if _read(self.folder / _PORTS) == text:
                return
            (self.folder / _ADDRESSES).touch(mode=0o600)  # it doesn't start without
            write_whole(self.folder / _PORTS, text, private=True)
            self._reload(numbers)

    def point(self, port: int, address: str) -> None:
        """Let a port lead to this address (`host:port`) from now on; without one it leads nowhere."""
        with self._alone():
            fence.check()
            addresses = parse(_read(self.folder / _ADDRESSES))
            if addresses.get(port, "") == address:
                return
            text = written({**addresses, port: address})
            write_whole(self.folder / _ADDRESSES, text, private=True)
            self._replace(text)

    def _reload(self, ports: Collection[int]) -> None:
        """Let it read its ports, if it runs.

        It takes no order while it reads, and may end the connection by which it was told, so its answer says nothing.
        """
        if not (before := self._worker()):
            return

        def is_renewed() -> bool:
            return self._worker() not in {"", before} and all(map(_listens, ports))

        def takes_effect() -> bool:
            self._tell(_MASTER, "reload\n")
            return wait_until(is_renewed, seconds=_AGAIN_SECONDS, pause=_LOOK_SECONDS)

        if not wait_until(takes_effect, seconds=RELOAD_SECONDS, pause=0.0):
            silent = [str(port) for port in ports if not _listens(port)]
            raise RefitError(
                f"The forwarder for ssh doesn't listen on port {', '.join(silent)}."
                if silent
                else "The forwarder for ssh didn't read its ports.",
                why="Another program may have taken the port." if silent else "It goes on with those that it had.",
                hint="`refit status` names its log.",
            )

    def _worker(self) -> str:
        """The number of the process that serves its ports; empty: it doesn't run."""
        answer = re.search("^Pid: ([0-9]+)$", self._tell(_COMMANDS, "show info\n") or "", re.MULTILINE)
        return answer[1] if answer else ""

    def _replace(self, text: str) -> None:
        """All addresses at once, so that none is missing for a moment."""
        if (answer := self._tell(_COMMANDS, f"prepare map ./{_ADDRESSES}\n")) is None:
            return
        version = answer.strip().rpartition(" ")[2]
        add = f"add map @{version} ./{_ADDRESSES} <<\n{text}\n" if text else ""
        commands = [part for part in (add, f"commit map @{version} ./{_ADDRESSES}\n") if part]
        if problems := [answer for part in commands if (answer := (self._tell(_COMMANDS, part) or "").strip())]:
            raise RefitError(
                "The forwarder for ssh didn't take the new addresses.",
                why=problems[0],
                hint="`refit down` and `refit up` start it anew; they end no session.",
            )

    def _tell(self, name: str, text: str) -> str | None:
        """Its answer; none: it doesn't run, or listens on no port yet, so that it needs no addresses."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                connection.connect(f"/proc/self/fd/{folder}/{name}")
                connection.sendall(text.encode())
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")
        except (FileNotFoundError, ConnectionError):
            return None
        finally:
            os.close(folder)
        return None if answer.startswith("Unknown map identifier") else answer

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with one_at_a_time(self.folder / "lock"):
            yield


def configuration(ports: Iterable[int]) -> str:
    """The part of the configuration that names the ports. Pure."""
    lines = "".join(f"    bind 127.0.0.1:{port}\n" for port in ports)
    return f"{_FRONTEND}{lines}" if lines else ""


def parse(text: str) -> dict[int, str]:
    """Where the ports lead: port → `host:port`. Pure."""
    return {int(port): address for port, address in (line.split() for line in text.splitlines())}


def written(addresses: Mapping[int, str]) -> str:
    """The text that `parse` reads; ports that lead nowhere are left out. Pure."""
    return "".join(f"{port} {address}\n" for port, address in sorted(addresses.items()) if address)


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""
