"""Layers of closed stages: kept in the registry by their keys, and carried over to new parents without a build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.settings import Settings
from flows.images.grafting import graft_fit
from flows.images.grafting.configuration import configured, has_layer
from flows.images.grafting.layers import Stored, Trees, UnreadableLayer, compare, composed, layers_of
from flows.images.grafting.lookups import looked_up
from flows.images.manifests import MANIFEST, Manifest, canonical
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost
from flows.images.signed import is_signed, signed
from flows.images.stages import Difference, Stage, layer_tag, local_name
from flows.signing.trust import Trust

KIND = "application/vnd.refit.layer.v1"
_PARENT, _PARENTS, _DIFF_ID = "io.refit.parent", "io.refit.parents", "io.refit.diff-id"
_MOST_NAMED = 3


class NotCarried(Exception):
    """A layer that can't be put on a parent; says why not."""


def layer_parent(note: Manifest) -> str:
    """The digest of the parent on which a layer stood last, by what is noted of it; empty if it is no such note."""
    return str(note.document.get("annotations", {}).get(_PARENT, ""))


def _parents(note: Manifest) -> dict[str, str]:
    """Stage that is a parent → its newest digest that a layer fits, by what is noted of it."""
    return dict(json.loads(note.document["annotations"].get(_PARENTS, "{}")))


@dataclass(frozen=True)
class _Kept:
    """A layer that is there.

    Attributes:
        stored: where.
        parent: the digest of the parent on which it stood last.
        parents: stage that is a parent → its newest digest that the layer fits.
    """

    stored: Stored
    parent: str
    parents: Mapping[str, str]


class Layers:
    """The layers of closed stages, in the repository of stages."""

    def __init__(self, settings: Settings, registry: Registry, trust: Trust) -> None:
        self._registry, self._repository, self._trust = registry, registry.stages, trust
        self._trees, self._noting = Trees(settings, registry), Lock()
        self._kept: dict[str, _Kept] = {}  # by their tags, those that are there

    def carry(self, stage: Stage, key: str, parent: Manifest) -> tuple[Manifest, str]:
        """Put the layer of a closed stage on a parent; returns the image, still to be stored, and what was done.

        Raises:
            NotCarried: there is no such layer, or it doesn't fit this parent: the stage has to be made.
        """
        if not has_layer(stage.text):
            return self._assemble(stage, parent, None), "it has no layer of its own"
        try:
            tag = self._tag(stage, key, parent)
        except (ValueError, UnreadableLayer, BlobLost) as error:
            raise NotCarried(f"nobody knows what it looks up in {parent.digest}: {error}") from None
        kept = self._find(tag)
        if parent.digest in kept.parents.values():
            return self._assemble(stage, parent, kept.stored), f"its layer stood on {parent.digest}"
        below = self._below(stage, kept)
        self._check(kept.stored, below, parent)
        self._note(tag, kept.stored, stage, parent, kept.parents)
        return self._assemble(stage, parent, kept.stored), f"its layer stood on {below.digest}"

    def keep(self, stage: Stage, key: str, parent: Manifest, built: Manifest) -> Manifest:
        """Keep the layer of a closed stage that was made on a parent; returns the image, still to be stored.

        Raises:
            RefitError: the stage has written where it may not.
        """
        stored = self._own(stage, parent, built)
        with suppress(ValueError):  # what it looks up can't be told: it is made anew on each parent
            tag = self._tag(stage, key, parent)
            before = self._noted(tag)
            same = before and before.document["layers"][0]["digest"] == stored.digest
            self._note(tag, stored, stage, parent, _parents(before) if before and same else {})
        return self._assemble(stage, parent, stored)

    def _tag(self, stage: Stage, key: str, parent: Manifest) -> str:
        """The tag of the layer that a stage's instructions give where they look up what they find in this parent.

        Raises:
            ValueError: their lookups can't be told.
            UnreadableLayer: nor what the parent holds.
        """
        config = self._registry.config(self._repository, parent)
        find = self._trees.finder(self._repository, parent)
        return layer_tag(key, looked_up(stage.text, stage.files, config, find))

    def _find(self, tag: str) -> _Kept:
        """The layer with this tag. It is looked for until it was there once: as long as a run lasts nobody prunes it.

        Raises:
            NotCarried: it isn't there.
        """
        if kept := self._kept.get(tag):
            return kept
        if not (note := self._registry.find(self._repository, tag)):
            raise NotCarried("its layer was never made where its instructions find the same")
        if not is_signed(note, tag, self._trust):
            raise NotCarried("nobody whose key counts here has signed its layer")
        (part,) = note.document["layers"]
        stored = Stored(part["digest"], part["size"], part["annotations"][_DIFF_ID], part["mediaType"])
        if not self._registry.has_blob(self._repository, stored.digest):
            raise NotCarried("the registry has lost its layer")
        return self._kept.setdefault(tag, _Kept(stored, layer_parent(note), _parents(note)))

    def _noted(self, tag: str) -> Manifest | None:
        """The note about a layer; none: there is none with a signature that counts."""
        note = self._registry.find(self._repository, tag)
        return note if note and is_signed(note, tag, self._trust) else None

    def _below(self, stage: Stage, kept: _Kept) -> Manifest:
        """A parent on which a layer stood; better the one before of the same stage, which is most like the new one."""
        digests = (kept.parents.get(stage.parent or ""), kept.parent)
        manifests = (self._registry.find(self._repository, digest, recall=True) for digest in digests if digest)
        if below := next(filter(None, manifests), None):
            return below
        raise NotCarried(f"the registry no longer has {kept.parent}, on which its layer stood")

    def _note(self, tag: str, stored: Stored, stage: Stage, parent: Manifest, before: Mapping[str, str]) -> None:
        """Let the layer be found by its tag, on the newest parent that it fits: older ones may be pruned.

        Of each stage that is a parent the newest is named, too, `before` the others: those of one stage are compared
        fast.
        """
        with self._noting:
            # Notes of other threads since then count as well.
            since = self._kept.get(tag)
            others = since.parents if since and since.stored == stored else {}
            noted = _Kept(stored, parent.digest, {**before, **others, stage.parent or "": parent.digest})
            self._put_note(tag, noted)
            self._kept[tag] = noted

    def _put_note(self, tag: str, noted: _Kept) -> None:
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": KIND,
            "config": self._registry.put_empty(self._repository),
            "layers": [{**noted.stored.descriptor, "annotations": {_DIFF_ID: noted.stored.diff_id}}],
            "annotations": {_PARENT: noted.parent, _PARENTS: canonical(noted.parents).decode()},
        }
        note = canonical(signed(document, tag, self._trust))
        self._registry.put_manifest(self._repository, tag, note, MANIFEST)

    def look_at(self, built: Manifest, before: str = "") -> None:
        """Read what was made, and in what it differs from what all stood on before: by that layers fit or don't."""
        with suppress(UnreadableLayer, BlobLost):  # whoever needs it will say so
            self._trees.tree(self._repository, built)
            if old := self._registry.find(self._repository, before) if before else None:
                self._trees.differing(self._repository, old, built)

    def differences(self, one: Manifest, other: Manifest) -> tuple[Difference, ...]:
        """In what two images in the repository of stages differ."""
        return compare(self._trees, self._repository, one, other)

    def compare(self, stage: Stage, parent: Manifest, grafted: Manifest, built: Manifest) -> tuple[Difference, ...]:
        """The differences between a grafted image and one whose layer was made on the same parent; keeps nothing."""
        return self.differences(grafted, self._assemble(stage, parent, self._own(stage, parent, built)))

    def _own(self, stage: Stage, parent: Manifest, built: Manifest) -> Stored:
        """The layer of a stage that was made on a parent; raises as `keep` does."""
        *below, stored = layers_of(self._registry, self._repository, built)
        if [part.digest for part in below] != [part["digest"] for part in parent.document["layers"]]:
            raise ValueError(f"the stage {stage.name!r} was not made on {parent.digest}")
        self._verify(stage, stored, parent)
        return stored

    def _assemble(self, stage: Stage, parent: Manifest, stored: Stored | None) -> Manifest:
        config = configured(
            self._registry.config(self._repository, parent),
            stage.text,
            stored.diff_id if stored else None,
            origin=local_name(parent.digest),
        )
        return composed(self._registry, self._repository, parent, [stored] if stored else [], config)

    def _check(self, stored: Stored, old: Manifest, parent: Manifest) -> None:
        try:
            different = self._trees.differing(self._repository, old, parent)
            obstacles = self._trees.obstacles(self._repository, stored, different)
        except (UnreadableLayer, BlobLost) as error:
            raise NotCarried(error.what) from None
        if obstacles:
            raise NotCarried(f"its layer doesn't fit: {some(obstacles, _MOST_NAMED, '; ')}")

    def _verify(self, stage: Stage, stored: Stored, parent: Manifest) -> None:
        """A layer that reaches beyond its own paths would change what it is carried to."""
        upper, tree = self._trees.layer(self._repository, stored), self._trees.tree(self._repository, parent)
        outside = graft_fit.strays(upper, stage.writes) if stage.writes else ()
        # buildah writes folders that were only looked into: they are what they were.
        strays = [path for path in outside if path not in tree or upper.entries.get(path) != tree[path]]
        changed = graft_fit.changed_ancestors(upper, tree)
        if strays or changed:
            wrong = (*(f"/{path}: outside of {' and '.join(stage.writes)}" for path in strays), *changed)
            raise RefitError(
                f"Stage {stage.name!r} writes where it may not.",
                why=some(wrong, _MOST_NAMED, "; "),
                hint="let its recipe write into its own folders only, and leave owner and mode of those above alone.",
            )
