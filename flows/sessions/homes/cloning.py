"""Homes for new sessions that begin as copies of others: made beside their place, and put there when they are whole.

In the pool a copy shares all files with its snapshot; only their owner is another one, which costs a write for each
file, and nothing of its content. Elsewhere all is copied. A copy holds none of the things that are one session's alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.sessions.homes import copying, enclosed, subvolumes_as_root
from flows.sessions.homes.folders import beside
from flows.sessions.homes.pool import Pool
from flows.sessions.homes.volumes import Part
from flows.sessions.model import HOME, nearest_legal

# Keys, the owner's word that nothing may stop the session, and the files by which IDEs know that they run already.
_OWN = (
    *(".ssh", ".config/refit/hold", ".local/share/jupyter/runtime", ".ipython/profile_default/pid"),
    *(".ipython/profile_default/security", ".local/share/code-server/heartbeat"),
    *(".local/share/rstudio/sessions/active", ".local/share/rstudio/rstudio-server.pid", ".vscode-server/.lock"),
)
# Sockets, and the locks of git and of offices, whose programs don't run in the copy.
_LEFT = ("-type", "s", "-o", "-path", "*/.git/*.lock", "-type", "f", "-o", "-name", ".~lock.*#", "-type", "f")
# Where one of them is a link, its target goes as well, if that is in the home: the home is where sessions see it.
_DROP = """
top=$1; shift
cd -- "$top" || exit
for path; do
  real=$(readlink -f -- "$path") || real=
  case $real in "$top"/*) rm -rf -- "$real" || exit;; esac
  [ ! -L "$path" ] || rm -f -- "$path" || :
done
"""


def draft_of(folder: Path) -> Path:
    """The place of a copy until it is whole: beside its own, under a name that no session has."""
    return folder.with_name(f".{folder.name}.clone")


def drafts_in(folder: Path) -> tuple[str, ...]:
    """The names of the homes of which there are such copies in a folder of homes."""
    names = (path.name.removeprefix(".").removesuffix(".clone") for path in folder.glob(".*.clone"))
    return tuple(name for name in names if nearest_legal(name) == name)


def require_none(folder: Path) -> None:
    """Find out whether a home may be made where there is none: not where a copy was to be put.

    Raises:
        RefitError: a process was killed while it made one.
    """
    if not folder.exists() and draft_of(folder).exists():
        raise RefitError(
            f"The copy that {folder.name!r} was to begin with is incomplete.",
            why="The process that made it was killed.",
            hint="`refit session recover` removes it; then clone again.",
        )


def make_draft(pool: Pool, source: Path, target: Path, seconds: float) -> None:
    """Make the copy of one part of a session beside its place, in the place of one that a killed process has left.

    Args:
        pool: of this machine.
        source: the part in a snapshot.
        target: the place of the copy, which isn't there yet.
        seconds: for which files may be copied.

    Raises:
        RefitError: there is no room, or it takes too long.
    """
    draft = draft_of(target)
    forget_draft(pool, target)
    if not draft.parent.exists():
        command.run(["install", "-d", "-m", "0755", draft.parent], root=True)
    if draft in pool and source in pool:
        pool.snapshot([(source, draft)], writable=True)
    else:
        if draft in pool:
            subvolumes_as_root.as_root("create", draft)
        copying.duplicate(source, draft, seconds)


def drop_own(draft: Path, secrets: Iterable[str], seconds: float) -> None:
    """Remove from the copy of a home all that is one session's alone, with the secrets that profiles name."""
    doomed = sorted({*_OWN, *secrets})
    enclosed.run(["sh", "-c", _DROP, "sh", HOME, *doomed], writes={draft: HOME}, limit=seconds)
    find = ["find", str(draft), "-xdev", "(", *_LEFT, ")", "-delete"]
    enclosed.run(find, writes=[draft], limit=seconds)


def give(pool: Pool, target: Path, old: int, new: int, seconds: float) -> None:
    """Let a copy belong to the user `new` in the place of `old`, and put it in its place, whole."""
    draft = draft_of(target)
    if target.exists() and not draft.exists():
        return
    # One program that goes from folder to folder takes half as long as `find -exec chown`, which looks up each path.
    call = ["chown", "-R", "-P", "-h", f"--from={old}", str(new), str(draft)]
    enclosed.run(call, writes=[draft], limit=seconds)
    command.run(["mv", "-T", "--", draft, target], root=True)
    if target in pool:
        pool.make(target, new)  # its limit


def forget_draft(pool: Pool, target: Path) -> None:
    """Remove a copy that wasn't put in its place; none there is no error."""
    draft = draft_of(target)
    if draft in pool:
        pool.delete(draft)
    else:
        copying.remove(draft)


def size_of(sources: Iterable[Path], most: int, pool: Pool, target: Path) -> int:
    """Bytes that a clone copies; 0 where it shares all."""
    outside = [source for source in sources if not (source in pool and target in pool)]
    return copying.extent_of(outside, most).size


def sources(parts: Iterable[Part], snapshot: Path) -> dict[Part, Path]:
    """Each part of a session, and where it is in a snapshot. Pure."""
    return {part: beside(part, snapshot) for part in parts}
