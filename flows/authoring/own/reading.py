"""A person's bundle as files: from a folder, which is read with that person's rights, or from an archive."""

from __future__ import annotations

import base64
import json
import os
import pwd
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from flows.authoring.own import read_archive, read_folder
from flows.core.documents import Mistake, Mistakes
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line
from flows.core.programs import command

FILES = 100  # files and folders
SIZE = 1_000_000  # bytes of all files together
DEPTH = 4
SECONDS = 30.0
NOBODY = 65_534
_PYTHON = "/usr/bin/python3"  # the system's: everybody may run it
ARCHIVE = 4 * SIZE  # bytes of an archive, as it comes


def from_folder(folder: Path, uid: int) -> dict[str, bytes]:
    """Path → content of the files of a person's folder.

    Args:
        folder: its path; no part of it may be a link.
        uid: the person's on this machine: the program that reads has their rights, and no others.

    Raises:
        Mistakes: there is something else than files, or more of it than may be.
        RefitError: it can't be read.
    """
    request = {"path": os.path.abspath(folder), "files": FILES, "size": SIZE, "depth": DEPTH}  # noqa: PTH100 - no links
    script = Path(read_folder.__file__).read_text(encoding="utf-8")
    return _contents(_output_of(uid, ["-", json.dumps(request)], script, "the program that reads a folder"))


def uid_of(owner: str) -> int:
    """The uid with which a person's folder is read: their own, else the caller's, and never root's."""
    try:
        return pwd.getpwnam(owner).pw_uid or NOBODY
    except KeyError:
        return os.getuid() or int(os.environ.get("SUDO_UID", "0")) or NOBODY


def from_archive(stream: IO[bytes]) -> dict[str, bytes]:
    """The same of an archive (tar, tar.gz or zip); a program without any rights takes it apart, and writes nothing.

    Raises:
        Mistakes: it has something else than files and folders, or more of it than may be.
        RefitError: it is no archive.
    """
    content = stream.read(ARCHIVE + 1)
    if len(content) > ARCHIVE:
        raise RefitError(f"The archive has more than {ARCHIVE:,} bytes.", hint="a bundle is a few files of text.")
    request = json.dumps({"files": FILES, "size": SIZE, "depth": DEPTH})
    script = Path(read_archive.__file__).read_text(encoding="utf-8")
    with TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        answer = _output_of(NOBODY, ["-c", script, request], file, "the program that reads archives")
    if (broken := answer.get("broken")) is not None:
        raise RefitError("That is no archive of tar or zip.", why=str(broken), hint="`tar -C FOLDER -c .` makes one.")
    return _contents(answer)


def _output_of(uid: int, words: list[str], stdin: str | IO[bytes], shown: str) -> dict[str, Any]:
    """Return the JSON that a program of the system's Python prints; it has the rights of this user, and no others."""
    python = [_PYTHON, "-I", "-S", *words]
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    done = command.run(
        [*become, "--no-new-privs", *python],
        root=True,
        stdin=stdin,
        limit=SECONDS,
        secret=True,
        most=4 * SIZE,
        cwd=Path("/"),
        shown=[shown],
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _contents(answer: dict[str, Any]) -> dict[str, bytes]:
    if refused := answer.get("refused"):
        raise Mistakes([Mistake(Path(on_a_line(str(refused[0]))), 0, str(refused[1]), "take it out")])
    return {path: base64.b64decode(text) for path, text in answer["files"].items()}
