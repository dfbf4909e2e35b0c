"""The enclosure of the jump host's sshd (bwrap), and whether this machine gives one to an ordinary user."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.formatting import printable
from flows.core.programs import command
from flows.core.programs.command import CommandTimeout, ProgramFailed
from flows.host import user_namespace
from flows.host.user_namespace import NoNamespace

SSHD = "/usr/sbin/sshd"
PYTHON = "/usr/bin/python3"
SHARED = "/refit"
HINT = (
    "let bwrap make namespaces of users (sysctl kernel.apparmor_restrict_unprivileged_userns=0, where there is that), "
    "and keep REFIT_HOME on a file system that isn't mounted with noexec. Or set `jump_port` to 0."
)
_TRIAL = "trial"


def enclosed(uid: int, etc: Path, shared: Path) -> tuple[str, ...]:
    """How a program is called with a uid and no right, with these folders as /etc and as `SHARED`; it is to follow."""
    rights = [word for name in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{name}")]
    alone = ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")
    links = [word for name in ("bin", "sbin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    path = ("--clearenv", "--setenv", "PATH", "/usr/sbin:/usr/bin:/bin")
    return (
        *("bwrap", *alone, *path, "--cap-drop", "ALL", *rights),
        *("--ro-bind", "/usr", "/usr", *links, "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"),
        *("--ro-bind", str(etc), "/etc", "--ro-bind", str(shared), SHARED, "--"),
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"),
        *("--bounding-set=-all", "--no-new-privs"),
    )


def open_folder(folder: Path) -> Path:
    """A folder that the user of the sshd can read; nobody gets to it but through the enclosure."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


@cache
def lack(folder: Path) -> str:
    """Why an ordinary user has no jump host on this machine; empty: they may have one.

    It is tried as the sshd is called, once in a process. A machine that is too busy to finish in time is believed to
    give one.

    Args:
        folder: of the service.
    """
    for needed in ("bwrap", "haproxy", SSHD):
        if not shutil.which(needed):
            return f"{needed} isn't installed."
    try:
        uid = user_namespace.uid().inner
        etc, shared = open_folder(folder / "etc"), open_folder(folder / "shared")
        program, text = shared / _TRIAL, f"#!{PYTHON} -IS\n"
        if not program.exists() or program.read_text(encoding="utf-8") != text:
            write_whole(program, text)
        program.chmod(0o755)
        command.run([*user_namespace.ENTER, *enclosed(uid, etc, shared), f"{SHARED}/{_TRIAL}"], limit=10)
    except CommandTimeout:
        return ""
    except NoNamespace as error:
        return "" if isinstance(error.__cause__, CommandTimeout) else error.why
    except ProgramFailed as error:
        last = error.tail.splitlines()[-1:] or [error.brief]
        return f"A program can't be run as its sshd would be: {printable(last[0])[:200]}"
    except RefitError as error:
        return str(error)
    return ""
