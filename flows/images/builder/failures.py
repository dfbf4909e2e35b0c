"""Reasons why a stage was not made, for people: which step failed, whose fault that is, and what to do."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flows.core import progress
from flows.core.errors import RefitError, Vanished
from flows.core.formatting import megabytes
from flows.core.programs import command
from flows.core.progress import State
from flows.core.settings import Settings
from flows.images.stages import Stage

NO_SPACE = re.compile(r"[Nn]o space left on device|[Dd]isk quota exceeded")
_VANISHED = re.compile(r"Version '([^']+)' for '([^']+)' was not found")
_UNMATCHED = re.compile(r"^Error: Unable to find a match: (.+)$", re.MULTILINE)
_UNLIKE = re.compile(r"Not as resolved: (.+)")  # said by the snippets that install packages
_STEP = re.compile(r"^STEP \d+/\d+: ")


@dataclass
class Watcher:
    """Follows buildah's output: reports each step, and remembers the last for the error."""

    stage: str
    step: str = field(default="")

    def __call__(self, line: str) -> None:
        """Take note of a line."""
        if _STEP.match(line):
            self.step = " ".join(line.split())
            progress.report(self.stage, State.running, self.step[:80])


@contextmanager
def explained(settings: Settings, stage: Stage, watcher: Watcher, log: Path) -> Iterator[None]:
    """Report a failed build, and say of it what a person needs to know."""
    try:
        yield
    except BaseException as error:
        progress.report(stage.name, State.failed, str(error).partition("\n")[0])
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(settings, stage, str(error)) from None
        if isinstance(error, command.ProgramFailed):
            raise failure(settings, stage, watcher.step, error, log) from None
        raise


def failure(settings: Settings, stage: Stage, step: str, error: command.ProgramFailed, log: Path) -> RefitError:
    """Why a program that a stage needs has failed, by what it said."""
    if NO_SPACE.search(error.tail):
        return disk_full(settings, stage, error.tail.splitlines()[-1])
    if isinstance(error, command.CommandTimeout):
        return _too_long(settings, stage, step or Path(error.argv[0]).name, error, log)
    vanished = [f"{name} {version}" for version, name in _VANISHED.findall(error.tail)]
    if vanished := [*vanished, *(name for line in _UNMATCHED.findall(error.tail) for name in line.split())]:
        return Vanished(
            f"The mirror has no longer what stage {stage.name!r} was resolved to.",
            why=", ".join(vanished),
            hint="run it again; it resolves them anew.",
        )
    if differing := _UNLIKE.search(error.tail):
        return unlike(stage, differing[1].split())
    return RefitError(
        f"Stage {stage.name!r} can't be built: {step or Path(error.argv[0]).name} failed.",
        why=error.why,
        hint=f"the whole output is in {log}.",
    )


def _too_long(settings: Settings, stage: Stage, step: str, error: command.CommandTimeout, log: Path) -> RefitError:
    key, limit = "build_timeout_seconds", f"{settings.build_timeout_seconds:g} s"
    if stage.confined:
        key, limit = "personal_builds.minutes", f"{settings.personal_builds.minutes:g} min"
    return RefitError(
        f"Stage {stage.name!r} takes too long: {step} was ended after {limit}.",
        why=error.why,
        hint=f"see in {log} what it waits for, or raise `{key}` in settings.yaml.",
    )


def no_image(stage: Stage, error: command.ProgramFailed) -> RefitError:
    """The public image that a base stands on isn't there."""
    return RefitError(
        f"The public image of stage {stage.name!r} can't be had.",
        why=error.why,
        hint=f"check that {stage.image.partition('/')[0]} is reached from here, or let the base's `image` name a copy.",
    )


def disk_full(settings: Settings, stage: Stage, message: str) -> RefitError:
    """There is no room for a stage."""
    free = shutil.disk_usage(settings.home).free
    return RefitError(
        f"The disk is full: stage {stage.name!r} can't be built.",
        why=f"{settings.home} has {megabytes(free)} left. {message.strip()}",
        hint="make space there, or move Refit's home to a larger disk (REFIT_HOME), then run it again.",
    )


def verify(stage: Stage, lines: tuple[str, ...]) -> None:
    """Refuse other packages than those that a stage was resolved to."""
    if lines != tuple(sorted(stage.system)):
        raise unlike(stage, sorted(set(lines) ^ set(stage.system)))


def unlike(stage: Stage, differing: Sequence[str]) -> Vanished:
    """The mirror gave other packages than those that a stage was resolved to."""
    return Vanished(
        f"The system packages of stage {stage.name!r} are not those that were resolved.",
        why=f"They differ in {', '.join(differing[:10])}: the mirror changed meanwhile.",
        hint="run it again; it resolves them anew.",
    )
