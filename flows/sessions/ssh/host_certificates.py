"""Host certificates of sessions: one line in a client's `known_hosts` holds for all of them, those of tomorrow too.

The authority of a home signs the host key of each session that lets anybody in. Its private key stays on this machine,
root's alone. Images begin an sshd that knows of no certificate; so a program of Refit's starts it anew in the
container, with the same configuration and the certificate. Connections that are open stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flows.core.file_locks import one_at_a_time
from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.ssh.client import host_name
from flows.sessions.ssh.keys import PublicKey, read_keys

CERTIFICATE = "host_key-cert.pub"
INSIDE = f"/run/refit/ssh/{CERTIFICATE}"
# A name may be another session's one day, and somebody may have copied the key of the session that had it before.
DAYS, RENEWED_AFTER_DAYS = 365, 30
# Days by which the clock of a person's machine may be behind.
_BEHIND = 1
_DAY = 86_400.0

# Its exit code where no sshd runs.
NOT_YET = 3
# Runs as the session's user. It is said to be done where there is nothing to do; else its exit code tells.
PRESENT = f"""
set -eu
listener=$(pgrep -o -f '^sshd: .*\\[listener\\]') || exit {NOT_YET}
title=$(tr '\\0' ' ' <"/proc/$listener/cmdline")
case $title in *HostCertificate*) exit 0 ;; esac
config=$(printf '%s' "$title" | sed -n 's|.* -f \\(/tmp/sshd-[A-Za-z0-9]*\\) .*|\\1|p')
[ -n "$config" ] || exit 4
certificate=HostCertificate={INSIDE}
/usr/sbin/sshd -t -f "$config" -o "$certificate"
kill "$listener"
for _ in $(seq 200); do
    kill -0 "$listener" 2>/dev/null || break
    sleep 0.01
done
exec /usr/sbin/sshd -f "$config" -o "$certificate" -E /proc/1/fd/2
"""


class HostCertificates:
    """The authority of this home, and what it signs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def authority(self) -> PublicKey:
        """The public key of the authority, which is made when it is first asked for."""
        (key,) = read_keys(self._key().with_suffix(".pub").read_text(encoding="ascii"), "authority.pub")
        return key

    def sign(self, name: str, folder: Path) -> None:
        """Give a session a certificate for its host key, unless it has one that isn't due; no host key needs none.

        Args:
            name: of the session.
            folder: with its host key.
        """
        if not self.is_due(folder):
            return
        public, certificate = folder / "host_key.pub", folder / CERTIFICATE
        key, draft = self._key(), folder / "draft.pub"
        call: list[str | Path] = ["ssh-keygen", "-q", "-s", key, "-I", f"refit-{name}", "-h", "-n", host_name(name)]
        root = not self._settings.in_cluster
        with one_at_a_time(key.with_name("lock")):
            command.run(["install", "-m", "0644", public, draft], root=root)
            command.run([*call, "-V", f"-{_BEHIND}d:+{DAYS}d", draft], root=root)
            command.run(["chmod", "--", "0644", folder / "draft-cert.pub"], root=root)
            command.run(["mv", "-T", "--", folder / "draft-cert.pub", certificate], root=root)
            command.run(["rm", "-f", "--", draft], root=root)

    def is_due(self, folder: Path) -> bool:
        """Whether the host key in a folder has no certificate, or one that is due; without a host key, it isn't.

        Args:
            folder: with the host key.
        """
        public, certificate = folder / "host_key.pub", folder / CERTIFICATE
        return public.exists() and (not certificate.exists() or _due(certificate, public))

    def _key(self) -> Path:
        folder = self._settings.folder("services", "jump", "authority")
        key = folder / "authority"
        if not key.exists():
            with one_at_a_time(folder / "lock"):
                if not key.exists():
                    self._make(key)
        return key

    def _make(self, key: Path) -> None:
        """The public one comes first: it is there when the private one is."""
        draft = key.with_name("draft")
        for file in (draft, draft.with_suffix(".pub")):
            file.unlink(missing_ok=True)
        command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "refit-authority", "-f", draft])
        draft.with_suffix(".pub").replace(key.with_suffix(".pub"))
        draft.replace(key)


def present(execute: Callable[[list[str]], str]) -> None:
    """Let the sshd of a session that runs show its certificate.

    Args:
        execute: runs a program in the container, as the session's user.

    Raises:
        ProgramFailed: it runs no sshd yet (`NOT_YET`), or one that was started otherwise.
    """
    execute(["sh", "-c", PRESENT])


def _due(certificate: Path, public: Path) -> bool:
    """Whether a certificate is old, or for another key than the one that is there now."""
    signed_at = certificate.stat().st_mtime
    return time.time() - signed_at > RENEWED_AFTER_DAYS * _DAY or signed_at < public.stat().st_mtime
