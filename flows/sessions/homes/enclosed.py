"""The one way in which root touches what lies in a home: a program that sees this home and nothing else of the machine.

The owner of a home may put a link in the place of a folder while a program of root's is in it. In the namespace that
`bwrap` makes there is nothing that a link could lead to: the folders that the program is given, at the paths that they
have outside, the system's own /usr to read, and no network, no device, no /proc, no process of anybody's. There is no
second way for machines on which that doesn't work: `refit doctor` says so, and nothing is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import Completed, ProgramFailed

# Capabilities to read, write, make and give away files of others, all within the folders.
_CAPABILITIES = ("DAC_OVERRIDE", "DAC_READ_SEARCH", "CHOWN", "FOWNER", "FSETID", "SETFCAP")
# Beyond a quota and into what a file system keeps for root: only to give somebody back what they had.
_BEYOND_QUOTA = "SYS_RESOURCE"
_ALONE = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin:/usr/sbin:/bin", "--setenv", "LANG", "C.UTF-8"),
    *("--cap-drop", "ALL"),
)
_YIELDING = ("nice", "-n", "10")
TRIAL_SECONDS = 20.0
_MOST = 64 << 20  # bytes of output: rsync names each file that vanishes meanwhile


class NotPossible(RefitError):
    """This machine lets nobody make a namespace of mounts."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            "Homes can't be read or written here: `bwrap` can't make a namespace for the program that copies them.",
            why=problem,
            hint="run `refit doctor`; it says what is missing.",
        )


def run(
    argv: Sequence[str | Path],
    *,
    reads: Iterable[Path] = (),
    writes: Iterable[Path] | Mapping[Path, str] = (),
    limit: float,
    accepted: Collection[int] = (0,),
    stdin: str | None = None,
    beyond_quota: bool = False,
    yields: bool = False,
    shown: Sequence[str | Path] | None = None,
) -> Completed:
    """Run a program as root that sees these folders, at their paths, and nothing else of anybody's.

    Args:
        argv: the program, one of the system's own, and its arguments.
        reads: folders that it can read.
        writes: folders that it can change, too; in a mapping, each with the path at which it is.
        limit: seconds after which it is ended.
        accepted: exit codes that are no failure.
        stdin: text for its standard input.
        beyond_quota: it may write where quotas let nobody write any more.
        yields: nobody waits for it, and on short cores it leaves them to programs for which somebody does.
        shown: the command for logs and errors, if that isn't `argv`.

    Raises:
        NotPossible: this machine can't do that.
        ProgramFailed: the program failed.
        CommandTimeout: it reached its limit.
        TooMuchOutput: it printed more than anybody reads.
    """
    bounds: Any = {"limit": limit, "accepted": accepted, "most": _MOST}
    more = ["--cap-add", f"CAP_{_BEYOND_QUOTA}"] if beyond_quota else []
    whole = [*(_YIELDING if yields else ()), "bwrap", *_options(reads, writes), *more, "--", *argv]
    try:
        return command.run(whole, root=True, stdin=stdin, shown=shown or argv, **bounds)
    except ProgramFailed as error:
        if error.exit_code_of_program == 1 and (problem := unusable()):
            raise NotPossible(problem) from error
        raise


def python(*arguments: str | Path) -> tuple[str | Path, ...]:
    """The call of Refit's own Python, for `run`: it executes what comes as standard input, with these arguments."""
    return (Path(sys.executable).resolve(), "-I", "-S", "-B", "-", *arguments)


def unusable() -> str:
    """Why no program can run so on this machine; empty: it can."""
    try:
        command.run(["bwrap", *_options((), ()), "--", "true"], root=True, limit=TRIAL_SECONDS)
    except ProgramFailed as error:
        return error.tail.strip() or error.what
    return ""


def remove(folder: Path, limit: float) -> None:
    """Remove a folder, or whatever there is in its place, with everything in it; nothing there is no error.

    A mount inside stays, and the folder with it.
    """
    if folder.is_dir() and not folder.is_symlink():
        run(["find", folder, "-xdev", "-mindepth", "1", "-delete"], writes=[folder], limit=limit)
        command.run(["rmdir", "--", folder], root=True)
    else:
        command.run(["rm", "-f", "--", folder], root=True)


def _options(reads: Iterable[Path], writes: Iterable[Path] | Mapping[Path, str]) -> list[str]:
    capabilities = [word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    folders = [word for folder in reads for word in ("--ro-bind", str(folder), str(folder))]
    places = writes if isinstance(writes, Mapping) else {folder: folder for folder in writes}
    # Later ones hide earlier ones: where Refit's Python is below one of these paths, the program sees the folder there.
    folders += [word for folder, place in places.items() for word in ("--bind", str(folder), str(place))]
    return [*_ALONE, *capabilities, *_system(), *folders, "--chdir", "/"]


@cache
def _system() -> tuple[str, ...]:
    """The system's programs and libraries, to read; of /etc only where libraries and programs (awk) are."""
    paths = ("/etc/ld.so.cache", "/etc/alternatives")
    return (*_programs(), *(word for path in paths for word in ("--ro-bind-try", path, path)))


def _programs() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if (folder := Path(name)).is_symlink():
            yield from ("--symlink", str(folder.readlink()), name)
        elif folder.is_dir():
            yield from ("--ro-bind", name, name)
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        yield from ("--ro-bind", sys.base_prefix, sys.base_prefix)
