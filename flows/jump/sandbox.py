"""The sshd of the jump host: what it reads, and the namespace in which it runs as a user of its own.

In that namespace it sees the system's /usr to read, a folder in the place of /etc, and the socket of the monitor; no
home, no process of others, no file that it could write but in a /tmp that vanishes with it. It keeps the network of
this machine: it is to lead to sessions. Where it may lead, OpenSSH decides by what the monitor says of the key.

Where Refit isn't root, all of it is inside of another namespace, which has users of Refit's own (`Namespace`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.programs import command, spawn
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import user_namespace
from flows.host.jump_enclosure import PYTHON, SHARED, SSHD, enclosed, open_folder
from flows.jump import authorized_keys_command, sshd_keeper
from flows.jump.namespace import Namespace
from flows.jump.sshd_keeper import Forwarding
from flows.sessions.model import SSH_PORT
from flows.sessions.ssh.client import JUMP_USER
from flows.sessions.ssh.keys import PublicKey, read_keys

# How long somebody may take to log in, in seconds.
LOGIN_SECONDS = 20
# Logins under way: from so many on some are refused, from the last number on all; and so many from one address.
_LOGINS, _LOGINS_OF_ONE = "40:30:60", 15
_FILES, _PROCESSES = 256, 4096
_SOCKET, _PROGRAM = "monitor", "authorized_keys_command.py"
_HINT = "This port leads to sessions. Connect to one by its name, like: ssh NAME.refit"


class Sandbox:
    """The files and the process of the sshd."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.folder("services", "jump")
        self._namespace: Namespace | None = None
        self._is_root = os.geteuid() == 0

    @property
    def _uid(self) -> int:
        """The uid of the sshd, as it is called where that runs."""
        return self._settings.jump_uid if self._is_root else user_namespace.uid().inner

    @property
    def uid(self) -> int:
        """The uid of the sshd, as this machine knows it.

        Raises:
            NoNamespace: Refit isn't root, and there is none for it.
        """
        return self._settings.jump_uid if self._is_root else user_namespace.uid().outer

    @property
    def socket(self) -> Path:
        """Where it asks the monitor."""
        return self._folder / "shared" / _SOCKET

    @property
    def hosts(self) -> Path:
        """Where the names of sessions lead."""
        return self._folder / "shared" / "hosts"

    def host_key(self) -> PublicKey:
        """The public key by which people's machines know this host, made when it is first asked for."""
        etc = self._open_folder("etc")
        key = etc / "host_key"
        if not key.exists():
            draft = etc / "draft"
            for file in (draft, draft.with_suffix(".pub")):
                file.unlink(missing_ok=True)
            command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "refit-jump", "-f", draft])
            command.run(["chmod", "0400", draft])
            self._give(draft)
            draft.with_suffix(".pub").replace(etc / "host_key.pub")
            draft.replace(key)
        (public,) = read_keys((etc / "host_key.pub").read_text(encoding="ascii"), "host_key.pub")
        return public

    def prepare(self) -> None:
        """Write what it reads."""
        self.host_key()
        self._keep_host_key_readable()
        etc, shared, uid = self._open_folder("etc"), self._open_folder("shared"), self._uid
        shell = "/bin/sh"  # by which sshd runs the one command that it knows
        _publish(etc / "passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\n{JUMP_USER}:x:{uid}:{uid}::/:{shell}\n")
        _publish(etc / "group", f"root:x:0:\n{JUMP_USER}:x:{uid}:\n")
        _publish(etc / "nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
        program = shared / _PROGRAM
        _publish(program, Path(authorized_keys_command.__file__).read_text(encoding="utf-8"))
        program.chmod(0o755)
        # OpenSSH calls programs of root alone. In a namespace of users, root owns Refit's files and not the system's.
        interpreter = f"{PYTHON} -I -S " if self._is_root else ""
        address, port = self._settings.bind_address, self._settings.jump_port
        _publish(etc / "sshd_config", configuration(address, port, f"{interpreter}{SHARED}/{_PROGRAM}"))
        _publish(self.hosts, "")
        hosts = etc / "hosts"  # it changes while the namespace is there, and is exchanged as a whole
        if not hosts.is_symlink():
            hosts.symlink_to(f"{SHARED}/{self.hosts.name}")

    def publish_hosts(self, hosts: str) -> None:
        """From now on names lead where these lines of `/etc/hosts` say."""
        _publish(self.hosts, hosts)

    def start(self) -> spawn.Helper:
        """Start it. It ends with this process, whatever becomes of that one, and all of its connections with it."""
        if self._is_root:
            return spawn.child(self.argv)
        self._namespace = Namespace(self.argv)
        return self._namespace.process

    def forwardings(self, pids: Collection[int]) -> frozenset[Forwarding]:
        """The connections of processes of the sshd to sessions."""
        if self._namespace:
            return self._namespace.forwardings(pids, SSH_PORT)
        return sshd_keeper.forwardings(pids, SSH_PORT)

    @property
    def argv(self) -> tuple[str, ...]:
        """How it is called."""
        enclosure = enclosed(self._uid, self._folder / "etc", self.socket.parent)
        return (*enclosure, SSHD, "-D", "-e", "-f", "/etc/sshd_config")

    def _keep_host_key_readable(self) -> None:
        """Give the private key to the user that the sshd has now: `jump_uid` and /etc/subuid may have changed.

        Raises:
            RefitError: it is a user's that is none of Refit's any more.
        """
        key = self._folder / "etc" / "host_key"
        if (owner := key.stat().st_uid) == self.uid:
            return
        try:
            self._give(key)
        except ProgramFailed:
            raise RefitError(
                "The sshd of the jump host can't read its host key.",
                why=f"It belongs to uid {owner}, which is no longer in this user's range of /etc/subuid.",
                hint=f"as root: chown {self.uid} {shlex.quote(str(key))}",
            ) from None

    def _give(self, file: Path) -> None:
        """Make the user of the sshd the owner of a file."""
        enter = () if self._is_root else user_namespace.ENTER
        command.run([*enter, "chown", f"{self._uid}:0", file])

    def _open_folder(self, name: str) -> Path:
        return open_folder(self._folder / name)


def configuration(address: str, port: int, ask: str) -> str:
    """The configuration of the sshd. Pure.

    Args:
        address: to listen at.
        port: to listen at.
        ask: the call of the program that asks the monitor about a key.
    """
    lines = {
        **{"Port": port, "ListenAddress": address, "HostKey": "/etc/host_key", "PidFile": "none", "UsePAM": "no"},
        **{"AllowUsers": JUMP_USER, "AuthenticationMethods": "publickey", "AuthorizedKeysFile": "none"},
        "AuthorizedKeysCommand": f"{ask} {SHARED}/{_SOCKET} %f",
        "AuthorizedKeysCommandUser": JUMP_USER,
        **dict.fromkeys(("AllowAgentForwarding", "AllowStreamLocalForwarding", "X11Forwarding"), "no"),
        **dict.fromkeys(("PermitTunnel", "PermitTTY", "PermitUserRC", "PermitUserEnvironment", "GatewayPorts"), "no"),
        # Which of them a key may ask for is said with the key.
        **{"AllowTcpForwarding": "local", "PermitOpen": f"*:{SSH_PORT}", "PermitListen": "none"},
        **{"ForceCommand": f"/bin/echo '{_HINT}'", "MaxSessions": 1, "PrintMotd": "no", "UseDNS": "no"},
        # An agent offers one key after another.
        **{"MaxAuthTries": 10, "LoginGraceTime": LOGIN_SECONDS, "MaxStartups": _LOGINS},
        **{"PerSourceMaxStartups": _LOGINS_OF_ONE, "ClientAliveInterval": 30, "ClientAliveCountMax": 4},
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def _publish(file: Path, text: str) -> None:
    """Write a file that the user of the sshd can read."""
    write_whole(file, text)
    file.chmod(0o644)
