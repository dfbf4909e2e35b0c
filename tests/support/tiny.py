"""Stages without a distribution: a root of this machine's own shell, built in less than a second."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from flows.core.programs import command
from flows.images.stages import Kind, Stage

PROGRAMS = ("/bin/sh", "/bin/sleep")
FOLDERS = ("dev", "etc", "mnt", "proc", "run", "sys", "tmp")
SAID = "executed"  # by each step, in a line of its own of the log


@cache
def root(nap: float = 0.0) -> Stage:
    """A stage that others can stand on."""
    return Stage("root", Kind.instructions, None, f"ADD tree.tar /\n{step('root', nap)}", {"tree.tar": tree()})


def on(parent: str, name: str, nap: float = 0.0, kind: Kind = Kind.instructions) -> Stage:
    """A stage whose step takes so many seconds."""
    return Stage(name, kind, parent, step(name, nap))


def step(name: str, nap: float = 0.0) -> str:
    return f"RUN echo {name} > /etc/{name}; sleep {nap}; echo {SAID}"


def executions(log: str) -> int:
    """How many steps were executed to their end, by what their programs said."""
    return sum(line.strip() == SAID for line in log.splitlines())


def tree(programs: Sequence[str] = PROGRAMS, extra: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """A tar of this machine's programs with the files that they are linked with, and of some texts."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path in sorted({path for program in programs for path in (program, *_libraries(program))}):
            data = Path(path).read_bytes()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
        for path, text in extra.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


def _libraries(program: str) -> list[str]:
    """The files that a program is linked with, the loader among them."""
    return re.findall(r"(/\S+) \(0x", command.run(["ldd", program]).stdout)
