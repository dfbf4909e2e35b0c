"""A person's bundle as files: from a folder, which is read with that person's rights, or from an archive."""

from __future__ import annotations

import base64
import io
import json
import os
import pwd
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from flows.authoring.own import read_folder
from flows.core.documents import Mistake, Mistakes
from flows.core.errors import RefitError
from flows.core.programs import command

FILES = 100  # files and folders
SIZE = 1_000_000  # bytes of all files together
DEPTH = 4
SECONDS = 30.0
NOBODY = 65_534
_PYTHON = "/usr/bin/python3"  # the system's: everybody may run it
_ARCHIVE = 4 * SIZE  # bytes of an archive, as it comes


def from_folder(folder: Path, uid: int) -> dict[str, bytes]:
    """Path → content of the files of a person's folder.

    Args:
        folder: its path; no part of it may be a link.
        uid: the person's on this machine: the program that reads has their rights, and no others.

    Raises:
        Mistakes: there is something else than files, or more of it than may be.
        RefitError: it can't be read.
    """
    asked = {"path": os.path.abspath(folder), "files": FILES, "size": SIZE, "depth": DEPTH}  # noqa: PTH100 - no links
    python = [_PYTHON, "-I", "-S", "-", json.dumps(asked)]
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    script = Path(read_folder.__file__).read_text(encoding="utf-8")
    call = [*become, "--no-new-privs", *python]
    done = command.run(call, root=True, stdin=script, limit=SECONDS, secret=True, most=4 * SIZE, cwd=Path("/"))
    told = json.loads(done.stdout)
    if refused := told.get("refused"):
        raise Mistakes([Mistake(Path(str(refused[0])), 0, str(refused[1]), "take it out")])
    return {path: base64.b64decode(text) for path, text in told["files"].items()}


def uid_of(owner: str) -> int:
    """The uid with which a person's folder is read: their own, else the caller's, and never root's."""
    try:
        return pwd.getpwnam(owner).pw_uid or NOBODY
    except KeyError:
        return os.getuid() or int(os.environ.get("SUDO_UID", "0")) or NOBODY


def from_archive(stream: IO[bytes]) -> dict[str, bytes]:
    """The same of a tar archive; nothing of it is written to the disk.

    Raises:
        Mistakes: it has something else than files and folders, or more of it than may be.
        RefitError: it is no archive.
    """
    content = stream.read(_ARCHIVE + 1)
    if len(content) > _ARCHIVE:
        raise RefitError(f"The archive has more than {_ARCHIVE:,} bytes.", hint="a bundle is a few files of text.")
    files: dict[str, bytes] = {}
    left, mistakes = SIZE, list[Mistake]()
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for number, member in enumerate(tar, start=1):
                path = PurePosixPath(member.name)
                if number > FILES:
                    raise Mistakes([Mistake(Path(path), 0, f"there are more than {FILES} files and folders")])
                if any(part.startswith(".") for part in path.parts) or member.isdir():
                    continue
                if not member.isreg() or path.is_absolute() or len(path.parts) > DEPTH or member.size > left:
                    mistakes.append(Mistake(Path(path), 0, "it is no plain file, too large, or lies too deep"))
                    continue
                file = tar.extractfile(member)
                files[str(path)] = file.read(member.size) if file else b""
                left -= member.size
    except tarfile.TarError as error:
        raise RefitError("That is no archive of tar.", why=str(error), hint="`tar -C FOLDER -c .` makes one.") from None
    if mistakes:
        raise Mistakes(mistakes)
    return files
