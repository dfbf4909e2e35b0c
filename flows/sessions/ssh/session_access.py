"""Ssh into sessions: who may come in, how a session is known to be the same one again, and where it listens now.

All of it lies in the session's folder on the host, where neither an image nor what happens in the home reaches it. The
files of sshd are in `ssh`, which containers see read-only, as the engine brings it to them (`engine.Sshd`); those that
only Refit needs lie beside it. A session gets its host key, and a port of the forwarder, with its first key, and keeps
both until it is removed.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.core.waiting import retry
from flows.sessions import own_folder
from flows.sessions.engine import KEYS_SECONDS, Engine
from flows.sessions.model import SSH_PORT, USER, Session
from flows.sessions.ssh.forwarder import Forwarder
from flows.sessions.ssh.host_certificates import HostCertificates
from flows.sessions.ssh.keys import PublicKey, read_keys
from flows.sessions.store import Exhausted

# The only use of the probe's key: a program inside sshd, that ends at once. A shell would read what is in the home.
PROBE_MAY = 'restrict,command="internal-sftp -R"'
AUTHORIZED = "authorized_keys"
# In that file, keys of the session itself stand above this line, those of people who may use it below.
_PEOPLE = "# people who may use this session\n"
LOGIN_SECONDS = 15.0
_POLL_SECONDS = 0.2
logger = logging.getLogger("refit.sessions")


def lets_in(folder: Path) -> bool:
    """Whether anybody may come in, by the folder that a session's container sees."""
    file = folder / AUTHORIZED
    return file.exists() and file.stat().st_size > 0


class Ssh:
    """The way into sessions by ssh."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._engine = settings, engine
        # Containers of this machine see its files; where an engine brings them elsewhere, they are Refit's own.
        self._root = not settings.in_cluster
        self.forwarder, self.certificates = Forwarder(settings), HostCertificates(settings)

    def folder(self, name: str) -> Path:
        """The folder that a session's container sees, there or not."""
        return own_folder.ssh(self._settings, name)

    def prepare(self, session: Session) -> None:
        """See to it that there is a folder for the container to see, if only an empty one."""
        if self._root:
            self._make_folder(session)
        if lets_in(folder := self.folder(session.name)):
            self.certificates.sign(session.name, folder)
            # Not until the slot of now has it, which may be out of reach: its next generation reads what is there then.
            self._engine.sshd.provide(session, wait=0)

    def keys(self, name: str) -> tuple[PublicKey, ...]:
        """The keys that were given to this session alone, whosever they are."""
        return self._authorized(name)[0]

    def people_keys(self, name: str) -> tuple[PublicKey, ...]:
        """The keys of people whom it lets in because they may use it."""
        return self._authorized(name)[1]

    def authorize(self, session: Session, keys: Sequence[PublicKey]) -> None:
        """Give a session these keys of its own and no others, at once; people who are in stay in.

        Raises:
            RefitError: no port is left, or the forwarder doesn't get it.
        """
        self._let_in(session, keys, self.people_keys(session.name))

    def authorize_people(self, session: Session, keys: Sequence[PublicKey], wait: float = KEYS_SECONDS) -> None:
        """Let the people with these keys in, besides those who have a key of the session's own; at once.

        `wait`: seconds in which a session that runs has to have them.

        Raises:
            RefitError: no port is left, or the forwarder or the session doesn't get it.
        """
        self._let_in(session, self.keys(session.name), keys, wait)

    def _authorized(self, name: str) -> tuple[tuple[PublicKey, ...], tuple[PublicKey, ...]]:
        file = self.folder(name) / AUTHORIZED
        own, _, people = file.read_text(encoding="utf-8").partition(_PEOPLE) if file.exists() else ("", "", "")
        return read_keys(own, str(file)) if own else (), read_keys(people, str(file)) if people else ()

    def _let_in(
        self, session: Session, own: Sequence[PublicKey], people: Sequence[PublicKey], wait: float = KEYS_SECONDS
    ) -> None:
        if not (own or people or self.folder(session.name).exists()):
            return
        if own or people:
            self._engine.sshd.check(session)
        self._make_folder(session)
        if own or people:
            self._make_key(self.folder(session.name) / "host_key", session.uid)
            self._make_key(self._probe_key(session.name), 0)
            probe = f"{PROBE_MAY} {self._public(self._probe_key(session.name))}\n"
            self._write(self.folder(session.name) / "probe", probe)
            host = self._public(self.folder(session.name) / "host_key")
            self._write(self._known_hosts(session.name), f"{_alias(session.name)} {host}\n")
            self.certificates.sign(session.name, self.folder(session.name))
            self._choose_port(session.name)
        lines = [*(f"{key}\n" for key in own), *((_PEOPLE, *(f"{key}\n" for key in people)) if people else ())]
        self._write(self.folder(session.name) / AUTHORIZED, "".join(lines))
        if lines or self.host_key(session.name):
            self._engine.sshd.provide(session, wait)
        self.forwarder.listen(self._ports().values())

    def addresses(self) -> dict[str, str]:
        """Where the sshd of each session is that lets somebody in and runs: session → IP address."""
        led = self.forwarder.addresses()
        return {name: led[port].rpartition(":")[0] for name, port in self._ports().items() if port in led}

    def host_key(self, name: str) -> PublicKey | None:
        """The public key by which a session is known to be the same one; none: it has had no key yet."""
        if not (self.folder(name) / "host_key.pub").exists():
            return None
        (key,) = read_keys(self._public(self.folder(name) / "host_key"), name)
        return key

    def open(self, session: Session) -> None:
        """Let logins reach the container of a session that runs, if it has keys."""
        if not lets_in(self.folder(session.name)):
            return
        host, port = self._engine.address(session.container, SSH_PORT)
        self.forwarder.listen(self._ports().values())
        self.forwarder.point(self.port(session.name), f"{host}:{port}")

    def start(self, session: Session) -> None:
        """Start sshd in the container of a session that runs without, if it has keys, and let logins reach it.

        Raises:
            RefitError: its image has none.
        """
        if lets_in(self.folder(session.name)):
            self._engine.sshd.start(session)
            self.present(session, session.container)
            self.open(session)

    def present(self, session: Session, container: str) -> bool:
        """Let the sshd of a session that runs show its certificate; returns whether that is over, one way or the other.

        Clients that have the session's own host key know it without.

        Args:
            session: the session of the sshd.
            container: of the session, in which it runs.
        """
        try:
            self.certificates.sign(session.name, self.folder(session.name))
            return self._engine.sshd.present(container)
        except RefitError as error:
            logger.warning("%s shows no host certificate: %s", session.name, error)
        return True

    def has_due_certificate(self, session: Session) -> bool:
        """Whether the certificate of a session's host key has to be signed anew; without a host key, there is none."""
        return self.certificates.is_due(self.folder(session.name))

    def close(self, session: Session) -> None:
        """Let logins wait, because the session's container goes."""
        if (port := self._ports().get(session.name)) is not None:
            self.forwarder.point(port, "")

    def forget(self, name: str) -> None:
        """Give a session's port back."""
        ports = self._ports()
        if (port := ports.pop(name, None)) is not None:
            command.run(["rm", "-f", "--", self._port_file(name)], root=self._root)
            self.forwarder.point(port, "")
            self.forwarder.listen(ports.values())

    def check(self, session: Session) -> str:
        """Log in as a person would, past the forwarder; returns what was seen, empty for a session without keys.

        Raises:
            RefitError: that isn't possible, or another host key answers.
        """
        if not lets_in(self.folder(session.name)):
            return ""
        host, port = self._engine.address(session.container, SSH_PORT)
        own = {"HostName": host, "Port": str(port), "IdentityFile": _quoted(self._probe_key(session.name))}
        alone = {"IdentitiesOnly": "yes", "IdentityAgent": "none", "BatchMode": "yes", "ControlPath": "none"}
        options = _options({**self.options(session.name), **own, **alone})
        call = ["ssh", "-F", "none", "-T", *options, "-s", _alias(session.name), "sftp"]
        log_in = partial(command.run, call, root=self._root, limit=LOGIN_SECONDS)
        try:  # it starts beside the IDE, not before it
            retry(log_in, ProgramFailed, seconds=LOGIN_SECONDS, pause=_POLL_SECONDS)
        except ProgramFailed as error:
            hint = f"`refit session logs {session.name}` shows why its sshd doesn't start, or refuses."
            raise RefitError("Nobody can log in by ssh.", why=error.tail or error.what, hint=hint) from None
        return "somebody can log in by ssh"

    def port(self, name: str) -> int:
        """The loopback port of a session that has or had keys.

        Raises:
            RefitError: it never had any.
        """
        if (port := self._ports().get(name)) is None:
            raise RefitError(
                f"The session {name!r} lets nobody in by ssh.",
                hint=f"`refit session ssh-keys {name} --add FILE` with the public key of whoever may come in.",
            )
        return port

    def fingerprint(self, name: str) -> str:
        """The fingerprint of its host key, as `ssh` shows it to people."""
        (key,) = read_keys(self._public(self.folder(name) / "host_key"), name)
        return key.fingerprint

    def options(self, name: str) -> dict[str, str]:
        """Options by which ssh can reach a session and to know that it is the right one.

        Raises:
            RefitError: it lets nobody in by ssh.
        """
        return {
            "HostName": "127.0.0.1",
            "Port": str(self.port(name)),
            "User": USER,
            "HostKeyAlias": _alias(name),
            "UserKnownHostsFile": _quoted(self._known_hosts(name)),
            "StrictHostKeyChecking": "yes",
        }

    def call(self, name: str, words: Sequence[str] = ()) -> list[str]:
        """The program that logs in to a session, with further words for ssh: options, or what to run there."""
        return ["ssh", *_options(self.options(name)), _alias(name), *words]

    def configuration(self, name: str) -> str:
        """Lines for `~/.ssh/config`, with which every program that speaks ssh finds the session."""
        lines = (f"    {option} {value}" for option, value in self.options(name).items())
        return "\n".join((f"Host {_alias(name)}", *lines))

    def _choose_port(self, name: str) -> None:
        with one_at_a_time(self.forwarder.folder / "ports.lock"):
            taken = self._ports()
            if name in taken:
                return
            span = self._settings.ssh_ports
            for port in range(span.first, span.last + 1):
                if port not in taken.values() and _is_free(port):
                    self._write(self._port_file(name), f"{port}\n")
                    return
        raise Exhausted("loopback port for ssh", span, "ssh_ports")

    def _ports(self) -> dict[str, int]:
        """The ports of all sessions that have one."""
        files = self._settings.folder("sessions").glob("*/ssh-port")
        return {file.parent.name: int(file.read_text(encoding="ascii")) for file in files}

    def _make_folder(self, session: Session) -> None:
        if not self.folder(session.name).exists():
            command.run(["install", "-d", "-m", "0711", self._own(session.name)], root=self._root)
            command.run(["install", "-d", "-m", "0755", self.folder(session.name)], root=self._root)

    def _make_key(self, file: Path, owner: int) -> None:
        """Make a pair of keys, unless it is there; the private one gets its name when it is its owner's alone."""
        if file.exists():
            return
        draft = file.with_name(f"{file.name}.new")
        public, comment = f"{draft}.pub", f"refit-{file.stem}"
        command.run(["rm", "-f", "--", draft, public], root=self._root)
        command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", draft], root=self._root)
        command.run(["chmod", "--", "0644", public], root=self._root)
        command.run(["chmod", "--", "0400", draft], root=self._root)
        if self._root:
            command.run(["chown", "--", f"{owner}:0", draft], root=True)
        command.run(["mv", "-T", "--", public, f"{file}.pub"], root=self._root)
        command.run(["mv", "-T", "--", draft, file], root=self._root)

    def _write(self, path: Path, text: str) -> None:
        """Write a file that everybody may read and its owner alone may change, whole or not at all."""
        draft = path.with_name(f"{path.name}.new")
        command.run(["install", "-m", "0644", "/dev/stdin", draft], root=self._root, stdin=text)
        command.run(["mv", "-T", "--", draft, path], root=self._root)

    def _public(self, key: Path) -> str:
        return Path(f"{key}.pub").read_text(encoding="ascii").strip()

    def _own(self, name: str) -> Path:
        return own_folder.of(self._settings, name)

    def _probe_key(self, name: str) -> Path:
        """A key of Refit's own: with it, it finds out whether anybody could log in."""
        return self._own(name) / "probe_key"

    def _known_hosts(self, name: str) -> Path:
        return self._own(name) / "known_hosts"

    def _port_file(self, name: str) -> Path:
        return self._own(name) / "ssh-port"


def _alias(name: str) -> str:
    return f"refit-{name}"


def _quoted(path: Path) -> str:
    return f'"{path}"'


def _options(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _is_free(port: int) -> bool:
    """Whether nobody listens on this loopback port."""
    with socket.socket() as probe:
        # A port where a connection has just ended is free; only a listener holds it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
