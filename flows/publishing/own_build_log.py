"""Lines about builds of people's own profiles, as their owners read them: progress, and the end of what failed.

A file for each bundle of a person, of its last build, and bounded: more is left out.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO

from flows.core import progress
from flows.core.database import now, open_database, write_rows
from flows.core.errors import RefitError
from flows.core.formatting import printable
from flows.core.programs.program_output import redacted
from flows.core.progress import Report, State
from flows.core.settings import Settings
from flows.publishing import own_build_log_copies

MOST = 1 << 18  # bytes of a log
PAGE = 1 << 16  # bytes that are read at once
STAGE_LINES = 100
_LINE = 400  # characters of a line of progress
_FAILED = ("Error: building at STEP", "error building at STEP")
_TAIL = 1 << 20  # bytes of the log of a stage that are looked at


def path(settings: Settings, owner: str, bundle: str) -> Path:
    """Where the log of a bundle of somebody is."""
    return settings.folder("logs", "own", owner) / f"{bundle}.log"


def for_owner(settings: Settings, text: str) -> str:
    """A text for the owner of a build: without control characters, secrets, or the place of Refit's home."""
    return printable(redacted(text)).replace(str(settings.home), "REFIT_HOME")


@contextmanager
def written(settings: Settings, owner: str, bundle: str) -> Iterator[None]:
    """Write what is reported inside the `with` block, and why it failed; the log begins anew."""
    file_path, database = path(settings, owner, bundle), open_database(settings.database)
    with (
        file_path.open("wb") as file,
        own_build_log_copies.followed(database, owner, bundle, settings.machine_name, file_path, MOST),
    ):
        log = _Log(file, partial(for_owner, settings))
        log.say(f"{now():%Y-%m-%d %H:%M:%S} UTC: the build begins.")
        try:
            with progress.listening(log.note):
                yield
        except BaseException as error:
            log.say(_last_line(error))
            for stage in sorted(log.failed):
                log.say(_end_of(settings.folder("logs", "stages"), stage, bundle))
            raise
        log.say(f"{now():%H:%M:%S} It is built.")


def problem_of(error: BaseException) -> str:
    """Why it failed; advice is for operators, and so are the errors of programs that nobody expected."""
    if isinstance(error, RefitError):
        return f"{error.what}\n{error.why}".strip()
    return f"It was ended, or Refit failed ({type(error).__name__})."


def _last_line(error: BaseException) -> str:
    failed = "It failed: " if isinstance(error, RefitError) else ""
    return f"{now():%H:%M:%S} {failed}{problem_of(error)}"


def _end_of(logs: Path, stage: str, bundle: str) -> str:
    """The last lines of a stage of this bundle, without Refit's own commands; of others, nothing."""
    of_stage = list(logs.glob(f"{stage}-*.log")) if bundle in stage.split("-") else []
    if not of_stage:
        return ""
    with max(of_stage, key=lambda log: log.stat().st_mtime).open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
        lines = said_by_steps(log.read(_TAIL).decode(errors="replace").splitlines())
    return "\n".join([f"The last lines of {stage}:", *lines[-STAGE_LINES:]])


def said_by_steps(lines: list[str]) -> list[str]:
    """The lines of a build's steps, up to buildah's word that one has failed. Pure.

    Before and after these, Refit shows its own commands. Where buildah was ended, they begin with the first of these.
    """
    begin = next((number for number, line in enumerate(lines) if line.startswith("STEP ")), len(lines))
    failed = [number for number, line in enumerate(lines) if line.startswith(_FAILED)]
    commands = (number for number, line in enumerate(lines) if number > begin and line.startswith("+ "))
    return lines[begin : failed[-1] + 1 if failed else next(commands, len(lines))]


class _Log:
    def __init__(self, file: IO[bytes], shown: Callable[[str], str]) -> None:
        self._file, self._shown, self._lock, self._size = file, shown, Lock(), 0
        self._last: dict[str, Report] = {}
        self.failed: set[str] = set()

    def note(self, report: Report) -> None:
        """Write a report down, unless it says what the last one of this thing said."""
        if self._last.get(report.thing) == report:
            return
        self._last[report.thing] = report
        if report.state is State.failed:
            self.failed.add(report.thing)
        note = f": {report.note}" if report.note else ""
        self.say(f"{now():%H:%M:%S} {report.thing} {report.state}{note}"[:_LINE])

    def say(self, text: str) -> None:
        """Write lines, as far as there is room."""
        line = f"{self._shown(text).rstrip()}\n".encode()
        with self._lock:
            if line.strip() and self._size < MOST:
                self._file.write(line[: MOST - self._size])
                self._file.flush()
                self._size += len(line)


def read(settings: Settings, owner: str, bundle: str, start: int) -> tuple[str, int]:
    """A part of a log from this byte on, as text, and where the next part begins; empty: there is no more yet."""
    copy = own_build_log_copies.of_another_machine(
        open_database(settings.database), owner, bundle, settings.machine_name
    )
    if copy is not None:
        return _page(io.BytesIO(copy), start)
    file = path(settings, owner, bundle)
    if not file.exists():
        return "", 0
    with file.open("rb") as log:
        return _page(log, start)


def _page(log: IO[bytes], start: int) -> tuple[str, int]:
    size = log.seek(0, os.SEEK_END)
    begin = start if 0 <= start <= size else 0  # it has begun anew
    log.seek(begin)
    part = log.read(PAGE)
    return printable(part.decode(errors="replace")), begin + len(part)


def begin_anew(settings: Settings, owner: str, bundle: str) -> None:
    """Remove the log of the last build, for another one is asked for."""
    path(settings, owner, bundle).unlink(missing_ok=True)
    write_rows(open_database(settings.database), lambda rows: own_build_log_copies.forget(rows, bundle))
