"""Layers in the registry: read as trees, and put together to images without a container."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Condition
from typing import IO, ParamSpec, TypeVar

from cachetools import LRUCache, cached
from isal import igzip_threaded

from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.settings import Settings
from flows.images import stages
from flows.images.grafting import graft_fit
from flows.images.grafting.configuration import Config, written
from flows.images.grafting.graft_fit import DEVICE, FILE, FOLDER, HARDLINK, SYMLINK, Entry, Layer, Spot, Tree
from flows.images.grafting.lookups import Find
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.stages import Difference

_P = ParamSpec("_P")
_T = TypeVar("_T")
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
_FORMAT = 1  # of the files in which trees are kept
_XATTR = "SCHILY.xattr."
_KINDS = {
    tarfile.DIRTYPE: FOLDER,
    tarfile.SYMTYPE: SYMLINK,
    tarfile.LNKTYPE: HARDLINK,
    tarfile.CHRTYPE: DEVICE,
    tarfile.BLKTYPE: DEVICE,
    tarfile.FIFOTYPE: DEVICE,
}
_CHUNK = 1 << 16  # bytes that are read ahead: tarfile copies them whenever it takes some


class UnreadableLayer(RefitError):
    """A layer that can't be read as a tree: stages that depend on it have to be built."""

    def __init__(self, digest: str, why: str) -> None:
        super().__init__(
            f"The layer {digest} can't be read.", why=why, hint="look into the registry's storage and log."
        )


@dataclass(frozen=True)
class Stored:
    """A layer in the registry.

    Attributes:
        digest: of the blob.
        size: bytes of the blob, compressed.
        diff_id: digest of the tar inside; empty where nobody asks for it.
        media_type: how it is compressed.
    """

    digest: str
    size: int
    diff_id: str = field(compare=False)
    media_type: str = GZIP

    @property
    def descriptor(self) -> dict[str, object]:
        """How a manifest names it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def layers_of(registry: Registry, repository: str, image: Manifest) -> tuple[Stored, ...]:
    """The layers of an image, lowest first."""
    diff_ids = registry.config(repository, image)["rootfs"]["diff_ids"]
    parts = image.document["layers"]
    return tuple(
        Stored(part["digest"], part["size"], diff_id, part["mediaType"])
        for part, diff_id in zip(parts, diff_ids, strict=True)
    )


def _stack(image: Manifest) -> tuple[Stored, ...]:
    """The layers of an image, lowest first, without what only its configuration tells of them."""
    return tuple(Stored(part["digest"], part["size"], "", part["mediaType"]) for part in image.document["layers"])


class Trees:
    """Reads layers and images as trees. Each layer is downloaded once; its tree is kept in the home."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings, self.registry = settings, registry
        self._folder = settings.folder("cache", "trees")
        # The images of a release share most of their layers; one of 50,000 files takes some 30 MB of memory.
        self._layer = _remembered(16, self._find)
        self._tree = _remembered(16, self._merged)
        self._differing = _remembered(64, self._compared)
        self._regions = _remembered(256, self._reach)
        self._spots = _remembered(256, self._kept_spots)

    def layer(self, repository: str, part: Stored) -> Layer:
        """One layer.

        Raises:
            UnreadableLayer: it is damaged, or compressed in a way that isn't known here.
        """
        return self._layer(repository, part)

    def obstacles(self, repository: str, part: Stored, different: frozenset[str]) -> tuple[graft_fit.Obstacle, ...]:
        """Why a layer can't be carried between parents that differ in these paths; raises as `layer` does.

        Of most layers it is enough to know roughly where they reach: their files need not be looked through.
        """
        if not graft_fit.may_meet(self._regions(repository, part), different):
            return ()
        return graft_fit.obstacles([self.layer(repository, part)], different)

    def tree(self, repository: str, image: Manifest) -> Tree:
        """The files of an image; raises as `layer` does."""
        return self._tree(repository, _stack(image))

    def finder(self, repository: str, image: Manifest) -> Find:
        """A function that finds the entry at a path of an image; each call raises as `layer` does."""
        stack = [(part, self._regions(repository, part)) for part in reversed(_stack(image))]

        def find(path: str) -> Entry | None:
            places = frozenset((path, *graft_fit.ancestors(path)))
            for part, regions in stack:
                if graft_fit.may_meet(regions, places) and (spot := self._spot(repository, part, path)).hidden:
                    return spot.entry
            return None

        return find

    def differing(self, repository: str, old: Manifest, new: Manifest) -> frozenset[str]:
        """All paths in which the files of two images differ, and maybe some more; raises as `layer` does.

        Layers that both have on top are left out: they can only hide differences, never make one.
        """
        parts = [list(_stack(image)) for image in (old, new)]
        while all(parts) and parts[0][-1].digest == parts[1][-1].digest:
            for stack in parts:
                stack.pop()
        return self._differing(repository, *map(tuple, parts))

    def _compared(self, repository: str, old: tuple[Stored, ...], new: tuple[Stored, ...]) -> frozenset[str]:
        return graft_fit.differing(self._tree(repository, old), self._tree(repository, new))

    def _merged(self, repository: str, parts: tuple[Stored, ...]) -> Tree:
        if not parts:
            return {}
        *below, top = parts
        tree = self._tree(repository, tuple(below))
        try:
            return graft_fit.merge([self.layer(repository, top)], tree)
        except ValueError as error:
            raise UnreadableLayer(top.digest, str(error)) from None

    def _find(self, repository: str, part: Stored) -> Layer:
        note = self._note(part)
        if kept := _kept(note):
            return kept
        with one_at_a_time(self._settings.folder("locks") / f"tree-{part.digest.removeprefix('sha256:')}"):
            if kept := _kept(note):
                return kept
            layer = self._read(repository, part)
            write_whole(self._note(part, "reach"), canonical(sorted(graft_fit.reach(layer))))
            write_whole(note, _dumped(layer))
        return layer

    def _reach(self, repository: str, part: Stored) -> frozenset[str]:
        try:
            return frozenset(json.loads(self._note(part, "reach").read_bytes()))
        except (OSError, ValueError, TypeError):
            return graft_fit.reach(self.layer(repository, part))

    def _spot(self, repository: str, part: Stored, path: str) -> Spot:
        """One path of a layer; kept, for each new base asks for the same few, and whole layers are slow to load."""
        spots = self._spots(part)
        if path not in spots:
            spots[path] = self.layer(repository, part).at(path)
            with self._note(part, "spots").open("ab") as lines:
                lines.write(canonical([path, *spots[path]]) + b"\n")
        return spots[path]

    def _kept_spots(self, part: Stored) -> dict[str, Spot]:
        try:
            lines = self._note(part, "spots").read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        return dict(filter(None, map(_spot, lines)))

    def _note(self, part: Stored, what: str = "tree") -> Path:
        return self._folder / f"{part.digest.removeprefix('sha256:')}.{what}.{_FORMAT}.json"

    def _read(self, repository: str, part: Stored) -> Layer:
        with TemporaryFile(dir=self._folder) as file:
            self.registry.get_file(repository, part.digest, file, part.size)
            try:
                with _opened(file, part.media_type) as tar:
                    return graft_fit.layer(_members(tar))
            except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
                raise UnreadableLayer(part.digest, str(error)) from None


def _remembered(most: int, function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function with a memory; of several threads that ask it the same, one works and the others wait for it."""
    return cached(LRUCache(most), condition=Condition())(function)


def _opened(file: IO[bytes], media_type: str) -> IO[bytes]:
    if media_type.endswith(("+gzip", ".gzip")):
        # It unpacks ahead, beside whoever reads.
        return igzip_threaded.open(file, threads=1)  # type: ignore[no-any-return,no-untyped-call]
    if media_type.endswith(".tar"):
        return file
    raise ValueError(f"Its type is {media_type}.")


def _members(file: IO[bytes]) -> Iterator[tuple[str, Entry]]:
    with tarfile.open(fileobj=file, mode="r|", bufsize=_CHUNK) as tar:
        for member in tar:
            yield member.name, _entry(tar, member)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    kind, content, size = _KINDS.get(member.type, FILE), "", 0
    if kind in (SYMLINK, HARDLINK):
        content = member.linkname
    elif kind == DEVICE:
        content = f"{member.type.decode()} {member.devmajor}:{member.devminor}"
    elif kind == FILE:
        file = tar.extractfile(member)
        if file is None:
            raise ValueError(f"/{member.name} has the unknown type {member.type!r}.")
        content, size = hashlib.file_digest(file, "sha256").hexdigest(), member.size  # type: ignore[arg-type]
    return Entry(kind, member.mode & 0o7777, member.uid, member.gid, content, size, _xattrs(member))


def _xattrs(member: tarfile.TarInfo) -> str:
    attributes = {
        name.removeprefix(_XATTR): value for name, value in member.pax_headers.items() if name.startswith(_XATTR)
    }
    return " ".join(
        f"{name}={value.encode('utf-8', 'surrogateescape').hex()}" for name, value in sorted(attributes.items())
    )


def _dumped(layer: Layer) -> bytes:
    return canonical(
        {"entries": layer.entries, "whiteouts": sorted(layer.whiteouts), "opaque": sorted(layer.opaque)},
    )


def _kept(note: Path) -> Layer | None:
    """The kept reading of a layer; none: it was never read, or the file is damaged."""
    try:
        kept = json.loads(note.read_bytes())
        entries = {path: Entry(*row) for path, row in kept["entries"].items()}
        return Layer(entries, frozenset(kept["whiteouts"]), frozenset(kept["opaque"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _spot(line: bytes) -> tuple[str, Spot] | None:
    """A path and its entry in a line; none: a killed process has left half of it."""
    try:
        path, row, hidden = json.loads(line)
        return str(path), Spot(Entry(*row) if row else None, bool(hidden))
    except (ValueError, TypeError):
        return None


def composed(
    registry: Registry, repository: str, parent: Manifest | None, added: Sequence[Stored], config: Config
) -> Manifest:
    """The image that layers give on top of a parent: its configuration is stored, its manifest is still to be.

    Args:
        registry: holds the parent and the layers.
        repository: the one that holds them.
        parent: the image below the added layers; none: these are all there are.
        added: the layers above it, lowest first.
        config: the whole configuration of the new image.

    Raises:
        ValueError: the configuration isn't one of these layers.
        RegistryError: the registry doesn't do its part.
    """
    below = parent.document["layers"] if parent else ()
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(below) + len(added) or diff_ids[len(below) :] != [part.diff_id for part in added]:
        raise ValueError("the layers of the configuration are not those of the image")
    blob = written(config)
    registry.put_config(repository, blob)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, blob),
        "layers": [*below, *(part.descriptor for part in added)],
    }
    content = canonical(document)
    return Manifest(digest_of(content), MANIFEST, content)


def compare(trees: Trees, repository: str, one: Manifest, other: Manifest) -> tuple[Difference, ...]:
    """In what two images differ: `files`, `config` and `history`. Nothing: in nothing.

    Dates and the order of files in a layer are no differences.
    """
    old_tree, new_tree = (trees.tree(repository, image) for image in (one, other))
    old, new = (trees.registry.config(repository, image) for image in (one, other))
    files = graft_fit.differing(old_tree, new_tree)
    return stages.differences(_contents_at(old, old_tree, files), _contents_at(new, new_tree, files))


def _contents_at(config: Config, tree: Tree, paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """The compared parts of an image, as text."""
    outer = {name: value for name, value in config.items() if name not in ("config", "rootfs", "history")}
    inner = {f"config.{name}": value for name, value in config["config"].items()}
    entries = {f"{number:03}": entry for number, entry in enumerate(config.get("history") or ())}
    sorts = {"files": {path: tree[path] for path in paths if path in tree}, "config": outer | inner, "history": entries}
    return {sort: {name: canonical(value).decode() for name, value in values.items()} for sort, values in sorts.items()}
