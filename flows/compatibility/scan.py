"""The compatibility scan: a home is read, the images are read once, and both are judged together.

Homes of this machine are read by a program of its own, other ones beside the session, while it runs.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from flows.compatibility import read_home, read_image, reports, scan_inside
from flows.compatibility.facts import Home, Image
from flows.compatibility.judge import Finding, Verdict, as_volume, judge, together, verdict
from flows.compatibility.read_home import BOUNDS, Bounds
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.formatting import clipped, on_a_line, short
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.sessions.engine import Engine
from flows.sessions.engines import run_in_image
from flows.sessions.homes.folders import folder_of
from flows.sessions.model import Session

GRACE_SECONDS, LOOK_SECONDS = 30.0, 300.0
_SHOWN = 200
_PYTHON = ("python3", "-B", "-")
# The folder in which a program begins may be the home, and modules in it would come before Python's own.
_PYTHON_IN_A_SESSION = ("env", "PYTHONSAFEPATH=1", *_PYTHON)
_SCRIPT = Path(read_image.__file__)


class UnreadableImage(RefitError):
    """An image that starts, and can't be read."""


@dataclass(frozen=True)
class Scan:
    """Findings of a scan of a session's home.

    Attributes:
        session: its name.
        old: digest of the image that it has.
        new: digest of the image that it would get.
        verdict: that of the worst finding.
        findings: the findings that the move concerns, worst first.
        files: how many files and folders of the home and of the session's own volumes were seen.
    """

    session: str
    old: str
    new: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    files: int


def scan(settings: Settings, engine: Engine, session: Session, image: str, bounds: Bounds = BOUNDS) -> Scan:
    """Find out whether home and volumes of a session go together with another image; nothing is changed.

    Args:
        settings: those in force.
        engine: where the session runs.
        session: the session with the home; where homes are read beside it, it has to run.
        image: digest of the other image.
        bounds: how much is looked at, in the home and in each volume.

    Raises:
        RefitError: home, volumes or image can't be read.
    """
    old, new = of_image(settings, session.image), of_image(settings, image)
    if engine.on_this_machine:
        places = _of_folders(session, new.home, bounds)
    else:
        home, *volumes = scan_inside.read(engine, session, bounds).items()
        places = [home[1], *(as_volume(facts, path) for path, facts in volumes)]
    findings = together(finding for place in places for finding in judge(place, old, new))
    files = sum(place.files for place in places)
    return Scan(session.name, session.image, image, verdict(findings), findings, files)


def _of_folders(session: Session, seen_as: str, bounds: Bounds) -> list[Home]:
    # Shared volumes belong to none of them, and to none of their users alone.
    own = [volume for volume in session.volumes if not volume.shared and folder_of(volume.ref).exists()]
    volumes = (as_volume(of_folder(folder_of(v.ref), session.uid, v.path, bounds), v.path) for v in own)
    return [of_folder(folder_of(session.home), session.uid, seen_as, bounds), *volumes]


def of_folder(folder: Path, uid: int, seen_as: str, bounds: Bounds = BOUNDS) -> Home:
    """The facts about a home or volume that can depend on an image.

    Args:
        folder: the one on the host.
        uid: of the owner of the folder.
        seen_as: where it is in the container.
        bounds: how much of it is looked at.

    Raises:
        RefitError: it can't be read.
    """
    request = {"home": str(folder), "uid": uid, "seen_as": seen_as, "bounds": asdict(bounds)}
    call = [sys.executable, "-I", "-m", read_home.__name__, json.dumps(request)]
    # The content of a home is its owner's business: it is judged, and stands in no log.
    limit = bounds.seconds + GRACE_SECONDS
    done = command.run(call, root=True, limit=limit, secret=True, most=reports.MOST_OF_HOMES)
    try:
        return reports.home(done.stdout)
    except reports.NoReport:
        raise RefitError(f"The scan of {folder} printed something that is no report of a scan.") from None


def in_container(engine: Engine, session: Session) -> Image:
    """The same as of an image, of a session's container that runs: by hand it may have been changed.

    Raises:
        RefitError: it doesn't run, or what it says can't be understood.
    """
    output = engine.execute(
        session.container, _PYTHON_IN_A_SESSION, stdin=_script(), limit=LOOK_SECONDS, most=reports.MOST_OF_IMAGE
    )
    try:
        return reports.image(output)
    except reports.NoReport:
        raise RefitError(f"The container {session.container} printed no report on its image.") from None


def is_kept(settings: Settings, digest: str) -> bool:
    """Whether the facts about the image with this digest are kept here."""
    return _kept(settings, digest) is not None


def of_image(settings: Settings, digest: str, seconds: float = 0.0) -> Image:
    """The facts that homes can depend on in the image with this digest: kept here, or read in a container of it.

    Args:
        settings: those in force.
        digest: of the image.
        seconds: for all of it; 0: as long as a session may take to start, and some minutes more.

    Raises:
        UnreadableImage: its Python doesn't run what reads it.
        RefitError: the image can't be had or started.
    """
    if kept := _kept(settings, digest):
        return kept
    limit = min(LOOK_SECONDS, seconds) if seconds else LOOK_SECONDS
    try:
        facts = reports.image(run_in_image(settings, digest, _PYTHON, _script(), limit, reports.MOST_OF_IMAGE, seconds))
    except ProgramFailed as error:
        last = clipped(on_a_line(error.tail.strip().rpartition("\n")[2]), _SHOWN)
        what = f"The image {short(digest)} can't be read: {last or error.brief}."
        raise UnreadableImage(what, why=error.why) from error
    except reports.NoReport:
        raise UnreadableImage(f"The image {short(digest)} printed something that is no report on it.") from None
    write_whole(_note(settings, digest), reports.as_bytes(facts))
    return facts


def _kept(settings: Settings, digest: str) -> Image | None:
    with suppress(FileNotFoundError, reports.NoReport):  # nobody has read it yet, or another version of Refit has
        return reports.image(_note(settings, digest).read_text(encoding="utf-8"))
    return None


def _script() -> str:
    return _SCRIPT.read_text(encoding="utf-8")


def _note(settings: Settings, digest: str) -> Path:
    """The file with the facts about an image, as this version of the reader sees them."""
    key = sha256(f"{digest} {_script()}".encode()).hexdigest()[:32]
    return settings.folder("cache", "compatibility") / f"{key}.json"
