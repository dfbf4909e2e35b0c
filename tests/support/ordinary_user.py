"""A user of this machine who isn't root, may do everything by sudo, and has a range of further users."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flows.sessions.model import USER
from tests.support.machine import ROOT
from tests.support.waiting import PATIENCE

UID = 64_321
# Of the further users, in /etc/subuid: others than those of tests that run at the same time.
FIRST_UID = 100_000_000 + os.getpid() % 10_000 * 65_536
# A mount namespace of its own knows the user, and what they may do by sudo; the machine's own files stay as they are.
# Checkout, packages and Python may lie in folders that are closed to others. The user may read everything, but
# access(2), which alembic asks, heeds no capability of theirs; so all of it is bound to where everybody gets.
ENTER = """
set -e
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/sudoers" /etc/sudoers
for file in subuid subgid; do
    if [ -e "/etc/$file" ]; then mount --bind "$1/subuid" "/etc/$file"; fi
done
mount --bind "$2" "$1/python"
mount --bind "$3" "$1/checkout"
mount --bind "$4" "$1/packages"
uid=$5; shift 5
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups \\
    --inh-caps +dac_read_search --ambient-caps +dac_read_search "$@"
"""


@dataclass(frozen=True)
class User:
    """Somebody who isn't root; the user of these tests, if that isn't root."""

    folder: Path
    python: Path
    become: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def starts(self, code: str, *arguments: str | Path) -> subprocess.Popen[str]:
        mine = {**os.environ, **self.environment, "HOME": str(self.folder), "REFIT_HOME": str(self.home)}
        words = [*self.become, self.python, "-c", code, *arguments]
        return subprocess.Popen(words, env=mine, cwd=self.folder, text=True, stdout=subprocess.PIPE)

    def runs(self, code: str, *arguments: str | Path) -> str:
        process = self.starts(code, *arguments)
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        return output

    @property
    def home(self) -> Path:
        return self.folder / "home"


@contextmanager
def without_sudo() -> Iterator[None]:
    """For a moment, the user who calls it may do nothing by sudo."""
    take = "kept=$(cat /etc/sudoers); : >/etc/sudoers; echo taken; cat; printf '%s\\n' \"$kept\" >/etc/sudoers"
    words, pipes = ["sudo", "-n", "sh", "-c", take], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as root:
        assert root.stdin and root.stdout and root.stdout.readline() == "taken\n"
        try:
            assert subprocess.run(["sudo", "-n", "true"], check=False, capture_output=True).returncode != 0
            yield
        finally:
            root.stdin.close()
            root.wait(PATIENCE)


def somebody(folder: Path) -> User:
    """A user with a Python of their own that finds what is installed for these tests.

    As the user of sessions they have a second name.
    """
    names = {"user": folder, USER: folder / "session"}
    lines = [f"{name}:*:{UID}:{UID}::{home}:/bin/sh\n" for name, home in names.items()]
    (folder / "passwd").write_text("".join(("root:*:0:0::/root:/bin/sh\n", *lines)))
    (folder / "sudoers").write_text("Defaults use_pty\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n")
    (folder / "sudoers").chmod(0o440)
    (folder / "subuid").write_text(f"user:{FIRST_UID}:65536\n")
    python = folder / "venv" / "bin" / "python"
    packages = folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    bound = {name: folder / name for name in ("python", "checkout", "packages")}
    for made in (*bound.values(), python.parent, packages):
        made.mkdir(parents=True)
    python.symlink_to(folder / "python" / "bin" / f"python{sysconfig.get_python_version()}")
    (folder / "venv" / "pyvenv.cfg").write_text(f"home = {folder}/python/bin\n")
    (packages / "tests.pth").write_text(f"{bound['checkout']}\n{bound['packages']}\n")
    os.chown(folder, UID, UID)
    folder.chmod(0o755)
    sources = (sys.base_prefix, str(ROOT), sysconfig.get_path("purelib"))
    become = ("unshare", "--mount", "sh", "-c", ENTER, "sh", str(folder), *sources, str(UID))
    return User(folder, python, become)
