"""Files that others may read while they are written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


def write_whole(file: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file so that whoever reads it finds all of its old content or all of the new; the last who writes wins.

    A `private` one is never there for others than its owner to read.

    Raises:
        OSError: it can't be written, or not all of it; then the old content stays.
    """
    write_whole_of(file, [content.encode() if isinstance(content, str) else content], private=private)


def write_whole_of(file: Path, pieces: Iterable[bytes], *, private: bool = False) -> None:
    """As `write_whole`, of pieces that come one after the other; an error of their source leaves the old content."""
    # Threads of one process may write the same file: each has a draft of its own.
    draft = file.with_name(f".{file.name}.{uuid4().hex[:8]}")
    try:
        draft.touch(mode=0o600 if private else 0o666)
        with draft.open("wb") as written:
            written.writelines(pieces)
        draft.replace(file)
    except BaseException:
        with suppress(FileNotFoundError):
            draft.unlink()
        raise


def write_together(folder: Path, files: Mapping[str, str]) -> None:
    """Write all drafts before the first takes its place, in the order of `files`, so that a full disk changes nothing.

    Raises:
        OSError: a draft can't be written; then all files stay as they were.
    """
    drafts = {folder / f".{name}.new": folder / name for name in files}
    try:
        for draft, content in zip(drafts, files.values(), strict=True):
            draft.write_text(content, encoding="utf-8")
        for draft, file in drafts.items():
            draft.replace(file)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


def kept_secret(file: Path) -> str:
    """The secret in a file, made up when it is first asked for; only its owner can read it, and it is there whole."""
    if not file.exists():
        draft = file.with_name(f".{file.name}.{uuid4().hex[:8]}")
        write_whole(draft, secrets.token_urlsafe(24), private=True)
        with suppress(FileExistsError):  # another process was first
            os.link(draft, file)
        draft.unlink()
    return file.read_text()
