"""People's own machines: each has a home with its keys and files for ssh, and calls the real programs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

from flows.core.atomic_files import write_whole
from flows.core.programs import command
from flows.core.settings import Settings
from flows.jump import client_files
from flows.sessions.model import SSH_PORT
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Account, Rights, Share
from flows.sessions.people.person_keys import PersonKeys
from flows.sessions.people.rights import Heard
from flows.sessions.ssh.keys import read_keys
from tests.support.waiting import PATIENCE

SECONDS = max(60.0, PATIENCE)


@dataclass(frozen=True)
class Laptop:
    """A machine of a person; `folder` stands for their home."""

    settings: Settings
    person: str
    folder: Path
    keys: PersonKeys

    @classmethod
    def make(cls, settings: Settings, person: str, folder: Path, keys: PersonKeys) -> Laptop:
        """One with a key that nobody has been told of yet."""
        (folder / ".ssh").mkdir(parents=True, mode=0o700)
        laptop = cls(settings, person, folder, keys)
        command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{person}@laptop", "-f", laptop.key])
        return laptop

    @property
    def key(self) -> Path:
        return self.folder / ".ssh" / "id_ed25519"

    @property
    def fingerprint(self) -> str:
        [key] = read_keys(self.key.with_suffix(".pub").read_text(), "mine")
        return key.fingerprint

    def tell_key(self) -> None:
        self.keys.add(self.person, read_keys(self.key.with_suffix(".pub").read_text(), "mine"))

    def configure(self) -> None:
        """Write what `refit ssh-config` writes."""
        client_files.write(client_files.way(self.settings, self.person).files(), self.folder / ".ssh")

    @property
    def ssh(self) -> str:
        """How ssh is called: it finds homes in /etc/passwd, whatever HOME says."""
        config, known_hosts = self.folder / ".ssh" / "own", self.folder / ".ssh" / "refit" / "known_hosts"
        text = (
            (self.folder / ".ssh" / "refit" / "config")
            .read_text()
            .replace("~/.ssh/refit/known_hosts", str(known_hosts))
        )
        alone = f"Host *\n  IdentityFile {self.key}\n  IdentityAgent none\n  IdentitiesOnly yes\n  BatchMode yes\n"
        # That of the jump host is checked, too.
        whole = f"{text}\n{alone}  UserKnownHostsFile {known_hosts}\n  StrictHostKeyChecking yes\n"
        write_whole(config, whole)  # a program of ssh that was called just now may be reading it
        return f"ssh -F {shlex.quote(str(config))}"

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The answer of a program that is called in the person's home."""
        program = shutil.which(words[0])
        assert program
        return subprocess.run(
            [program, *words[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        names = {"HOME": str(self.folder), "GIT_SSH_COMMAND": self.ssh, "GIT_CONFIG_NOSYSTEM": "1"}
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **names}

    def run(self, session: str, text: str) -> subprocess.CompletedProcess[str]:
        """The answer of shell text that runs in a session."""
        return self.call(*self.ssh.split(), f"{session}.refit", text)

    def open(self, *words: str) -> subprocess.Popen[str]:
        """Begin a program of ssh that stays connected."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self.ssh.split(), *words], cwd=self.folder, env=self.environment, text=True, **pipes)


def hear(settings: Settings, people: Iterable[str], shares: Iterable[Share] = (), servers: Iterable[str] = ()) -> None:
    """Let it be known what a Hub says of people."""
    accounts = {person: Account(person) for person in people}
    settings.folder("services", "authorizer")
    rights.keep(settings, Heard(Rights(accounts, frozenset(shares)), dict.fromkeys(servers, "")))


class Greeter(StreamRequestHandler):
    """Says which session it stands for, and stays."""

    def handle(self) -> None:
        self.wfile.write(f"this is {self.server.server_address[0]}\n".encode())
        self.rfile.read()


@contextmanager
def greeter(number: int) -> Iterator[str]:
    """A stand-in for a session: gives its address, which nobody else has on this machine."""
    address = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.{number}"
    ThreadingTCPServer.allow_reuse_address = True
    server = ThreadingTCPServer((address, SSH_PORT), Greeter)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield address
    server.shutdown()
    server.server_close()
