"""Whether layers that were made on one parent can be put on another. Pure.

Paths are relative to the root of an image and have neither a `/` at the start nor at the end.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

FILE, FOLDER, SYMLINK, HARDLINK, DEVICE = "file", "folder", "symlink", "hardlink", "device"
EVERYWHERE = "/"  # a region that no path lies in
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."


class Entry(NamedTuple):
    """The entry at a path. Dates are left out: all layers carry the same.

    Attributes:
        kind: `file`, `folder`, `symlink`, `device`; in a layer also `hardlink`.
        mode: permission bits.
        uid: number of the owner.
        gid: number of the group.
        content: hash of a file, target of a link, numbers of a device; empty for a folder.
        size: bytes of a file.
        xattrs: extended attributes as `name=hex`, sorted, with blanks in between.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    content: str = ""
    size: int = 0
    xattrs: str = ""


Tree = Mapping[str, Entry]


class Spot(NamedTuple):
    """One path, as one layer has it.

    Attributes:
        entry: the layer's entry for it; none: it has none.
        hidden: whether nothing that the layers underneath have there is seen.
    """

    entry: Entry | None
    hidden: bool


_IMPLIED = Entry(FOLDER, 0o755, 0, 0)


@dataclass(frozen=True)
class Layer:
    """The changes of one layer to the tree below it: adds or replaces entries, removes paths, empties folders."""

    entries: Tree = field(default_factory=dict)
    whiteouts: frozenset[str] = frozenset()
    opaque: frozenset[str] = frozenset()

    def hides_below(self, path: str) -> bool:
        """Whether nothing of the layers underneath is seen below a path."""
        entry = self.entries.get(path)
        return path in self.opaque or path in self.whiteouts or (entry is not None and entry.kind != FOLDER)

    def at(self, path: str) -> Spot:
        """The entry that this layer has at a path, and whether it hides what the layers underneath have there."""
        entry = self.entries.get(path)
        hidden = entry is not None or path in self.whiteouts or any(map(self.hides_below, ancestors(path)))
        return Spot(entry, hidden)

    @cached_property
    def leant_on(self) -> frozenset[str]:
        """The paths that this layer counts on without having them: folders above, and targets of hard links."""
        paths: set[str] = set()
        for path in (*self.entries, *self.whiteouts, *(f"{folder}/" for folder in self.opaque)):
            for above in ancestors(path):
                if above in paths:
                    break
                paths.add(above)
        links = {entry.content for entry in self.entries.values() if entry.kind == HARDLINK}
        return frozenset(paths | links) - self.entries.keys()


@dataclass(frozen=True, order=True)
class Obstacle:
    """A path because of which layers can't be put on a parent, and why, in words."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"/{self.path}: {self.reason}"


def layer(members: Iterable[tuple[str, Entry]]) -> Layer:
    """A layer from the members of its tar, in their order, whiteouts among them.

    Raises:
        ValueError: a member's name leads out of the root.
    """
    entries: dict[str, Entry] = {}
    whiteouts: set[str] = set()
    opaque: set[str] = set()
    for name, entry in members:
        path = normal(name)
        folder, _, last = path.rpartition("/")
        if last == _OPAQUE:
            opaque.add(folder)
        elif last.startswith(_RESERVED):
            continue  # bookkeeping of aufs; every program that unpacks layers leaves it out
        elif last.startswith(_WHITEOUT):
            whiteouts.add(posixpath.join(folder, last.removeprefix(_WHITEOUT)))
        else:
            linked = entry._replace(content=normal(entry.content)) if entry.kind == HARDLINK else entry
            entries.pop(path, None)  # of two members with one name the later counts
            entries[path] = linked
    return Layer(entries, frozenset(whiteouts), frozenset(opaque))


def normal(name: str) -> str:
    """The path that a tar's member is called by.

    Raises:
        ValueError: it leads out of the root.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"a layer's path leads out of it: {name!r}")
    return "/".join(parts)


def ancestors(path: str) -> Iterator[str]:
    """The folders above a path, the nearest first; the root itself is left out."""
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path


def merge(layers: Iterable[Layer], below: Tree | None = None) -> Tree:
    """The tree that a stack of layers gives, lowest first; hard links are what they link to.

    Args:
        layers: the stack.
        below: the tree that it stands on.

    Raises:
        ValueError: a hard link has no target.
    """
    tree = dict(below or {})
    for upper in layers:
        replaced = {path for path in (*upper.entries, *upper.whiteouts) if path in tree and upper.hides_below(path)}
        if hiding := {*replaced, *upper.opaque}:
            tree = {p: e for p, e in tree.items() if p not in upper.whiteouts and not _below_any(p, hiding)}
        for path, entry in upper.entries.items():
            for above in ancestors(path):
                if above in tree and tree[above].kind == FOLDER:
                    break
                tree[above] = _IMPLIED
            tree[path] = _target(path, entry, tree) if entry.kind == HARDLINK else entry
    return tree


def _below_any(path: str, folders: set[str]) -> bool:
    return ("" in folders and path != "") or any(above in folders for above in ancestors(path))


def _target(path: str, link: Entry, tree: Tree) -> Entry:
    if link.content not in tree:
        raise ValueError(f"/{path} is a hard link to /{link.content}, which is not there")
    return tree[link.content]


def differing(old: Tree, new: Tree) -> frozenset[str]:
    """The paths in which two trees differ: created, removed, replaced, or with another owner or mode."""
    return frozenset(path for path in {*old, *new} if old.get(path) != new.get(path))


def obstacles(carried: Iterable[Layer], different: frozenset[str]) -> tuple[Obstacle, ...]:
    """Why layers can't be carried from one parent to another; nothing: they can.

    Args:
        carried: the layers above the parent.
        different: the paths in which the old and the new parent differ.
    """
    return tuple(sorted({obstacle for upper in carried for obstacle in _obstacles(upper, different)}))


def _obstacles(upper: Layer, different: frozenset[str]) -> Iterator[Obstacle]:
    for path in different & upper.whiteouts:
        yield Obstacle(path, "the parents differ in it, and the carried layers remove it")
    for path in different & upper.entries.keys():
        folder = upper.entries[path].kind == FOLDER
        what = "have this folder with the owner and mode of the old parent" if folder else "have it as well"
        yield Obstacle(path, f"the parents differ in it, and the carried layers {what}")
    for path in different & upper.leant_on:
        yield Obstacle(path, "the parents differ in it, and entries of the carried layers stand below it or link to it")
    for path in different:
        hider = next((above for above in (*ancestors(path), "") if above != path and upper.hides_below(above)), None)
        if hider is not None:
            yield Obstacle(path, f"the parents differ in it, and the carried layers hide all below /{hider}")


def reach(upper: Layer) -> frozenset[str]:
    """The regions of a tree that a layer has to do with: a region is what the first two names of a path are."""
    paths = {*upper.entries, *upper.whiteouts, *upper.opaque, *upper.leant_on}
    if any(upper.hides_below(path) for path in paths if "/" not in path):
        return frozenset({EVERYWHERE})
    return frozenset(map(_region, paths))


def may_meet(regions: frozenset[str], different: frozenset[str]) -> bool:
    """Whether a layer that reaches into these regions may have obstacles where two parents differ; without: none."""
    return EVERYWHERE in regions or any(_region(path) in regions for path in different)


def _region(path: str) -> str:
    return "/".join(path.split("/", 2)[:2])


def strays(upper: Layer, allowed: Iterable[str]) -> tuple[str, ...]:
    """The paths that a layer writes, removes or empties although they lie neither in nor above the allowed folders."""
    inside = {normal(path) for path in allowed}
    above = {folder for path in inside for folder in ancestors(path)} | {""}
    written = {path for path, entry in upper.entries.items() if entry.kind != FOLDER or path not in above}
    return tuple(
        sorted(
            path
            for path in {*written, *upper.whiteouts, *upper.opaque}
            if path not in inside and not any(folder in inside for folder in ancestors(path))
        )
    )


def changed_ancestors(upper: Layer, parent: Tree) -> tuple[Obstacle, ...]:
    """The folders of the parent that a layer changes by carrying them with another owner or mode, or not at all."""
    paths = []
    for path in {*upper.entries, *(above for entry in upper.entries for above in ancestors(entry))}:
        mine, its = upper.entries.get(path), parent.get(path)
        if its is None or mine == its or (mine and mine.kind != FOLDER):
            continue
        if mine is None:
            paths.append(Obstacle(path, "the layer has entries below this folder but not the folder itself"))
        else:
            paths.append(Obstacle(path, f"the layer makes it {_described(mine)}, the parent has {_described(its)}"))
    return tuple(sorted(paths))


def _described(entry: Entry) -> str:
    xattrs = f" with {entry.xattrs}" if entry.xattrs else ""
    return f"a {entry.kind} of {entry.uid}:{entry.gid}, mode {entry.mode:04o}{xattrs}"
