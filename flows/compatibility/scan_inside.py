"""Scans of homes that no program of this machine can read: the reader runs beside the session, where that runs.

Nobody there is trusted. Programs of the session could speak for the reader, so its reports are data, with bounds in
bytes and time, and whatever they say is about that session alone.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path

import elftools

from flows.compatibility import elf, facts, read_home, read_inside, reports
from flows.compatibility.facts import Home
from flows.compatibility.read_home import Bounds
from flows.core.errors import RefitError
from flows.core.formatting import clipped, on_a_line
from flows.core.programs.command import ProgramFailed
from flows.sessions.engine import Engine
from flows.sessions.model import HOME, Session

MOST_TOLD = reports.MOST_OF_HOMES  # bytes: as a rule, some hundred kilobytes
GRACE_SECONDS = 30.0
_SHOWN = 200
_OLD, _NO_PROGRAM = 71, 127
# The archive stays in memory, and no file of the home or the image is imported in its place.
_BEGIN = f"""
import base64, os, sys
if sys.version_info < (3, 11):
    sys.exit({_OLD})
request, archive = sys.stdin.buffer.read().split(b"\\n", 1)
memory = os.memfd_create("refit")
with open(memory, "wb", closefd=False) as file:
    file.write(base64.b64decode(archive))
sys.path.insert(0, f"/proc/self/fd/{{memory}}")
from flows.compatibility.read_inside import main
main(request)
"""
_READS = ("python3", "-I", "-B", "-c", _BEGIN)
_REASONS = {_OLD: "the Python of its image is older than 3.11", _NO_PROGRAM: "its image has no python3"}


class NotRead(RefitError):
    """The home of a session can't be read where it runs; `brief` says why."""

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(
            f"The home of {session} can't be read in its container.",
            why=f"{reason[:1].upper()}{reason[1:]}.",
            hint=f"`refit migrate rehearse {session}` tries the image with a copy of the home.",
        )
        self._reason = reason

    @property
    def brief(self) -> str:
        """The reason alone."""
        return self._reason


def read(engine: Engine, session: Session, bounds: Bounds) -> dict[str, Home]:
    """The facts about home and own volumes of a session that runs, each by its path there; the home is the first.

    Args:
        engine: where it runs.
        session: the session.
        bounds: how much is looked at, in each of them.

    Raises:
        NotRead: its image can't run the reader, or something else answers.
        RefitError: it doesn't run, or doesn't answer in time.
    """
    folders = [HOME, *(volume.path for volume in session.volumes if not volume.shared)]
    limit = bounds.seconds * len(folders) + GRACE_SECONDS
    request = {"folders": folders, "bounds": asdict(bounds), "seconds": round(limit)}
    try:
        told = engine.execute(
            session.container, _READS, f"{json.dumps(request)}\n{_archive()}", limit=limit, most=MOST_TOLD
        )
    except ProgramFailed as error:
        raise NotRead(session.name, _reason(error)) from error
    return dict(zip(folders, _parsed(session.name, told, len(folders)), strict=True))


def _reason(error: ProgramFailed) -> str:
    if reason := _REASONS.get(error.exit_code_of_program or 0):
        return reason
    last = error.tail.strip().rpartition("\n")[2]
    return clipped(on_a_line(last), _SHOWN) or "its reader ended without a word"


def _parsed(session: str, told: str, number: int) -> tuple[Home, ...]:
    try:
        homes = reports.homes(told)
    except reports.NoReport:
        raise NotRead(session, "something else than the reader of homes answered") from None
    if len(homes) != number:
        raise NotRead(session, "the reader of homes told of other folders")
    return homes


@cache
def _archive() -> str:
    """The reader and the part of pyelftools that is Python, as a ZIP archive in base64."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("flows", "flows/compatibility"):
            archive.writestr(f"{package}/__init__.py", "")
        for module in (elf, facts, read_home, read_inside):
            archive.writestr(f"{module.__name__.replace('.', '/')}.py", Path(str(module.__file__)).read_bytes())
        top = Path(str(files(elftools)))
        for path in sorted(top.rglob("*.py")):
            archive.writestr(f"elftools/{path.relative_to(top)}", path.read_bytes())
    return base64.b64encode(content.getvalue()).decode("ascii")
