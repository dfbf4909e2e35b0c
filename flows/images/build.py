"""Stages become images: found in the registry by key, else grafted onto their parent, else made.

The image of a closed stage is always put together from its parent and its layer, by writing manifest and configuration:
so it is the same whether the layer was made on this parent or carried over from another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from flows.core import progress
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.leases import Lease, lease
from flows.core.progress import State
from flows.core.settings import Settings
from flows.core.threads import each
from flows.images import plan, stages
from flows.images.builder.stage_builder import StageBuilder
from flows.images.grafting.layer_cache import Layers, NotCarried
from flows.images.ledger import Ledger
from flows.images.manifests import Manifest
from flows.images.plan import Plan
from flows.images.registry import Registry
from flows.images.signed import Signatures, signature_tag
from flows.images.stages import Difference, Entry, Graph, Inputs, Stage, key_of
from flows.signing.trust import Trust

logger = logging.getLogger("refit.build")
# Those that make one stage: mmdebstrap, or what pulls the parent; then what builds, and what pushes.
_LONG_PROGRAMS = 3
_IN_TURN = 2  # a stage, and another for whose end it waits if this machine is full
_SHOWN = 5  # differences that are named


@dataclass(frozen=True)
class Built:
    """A stage in the registry.

    Attributes:
        stage: its name.
        key: its key, and its tag in the repository of stages.
        layer: the key of a closed stage's layer, the same on every parent; none for other stages.
        digest: its manifest's.
        reused: it was there.
        seconds: how long it took.
        log: the output of all programs; none where none was started.
        reason: why it was made, or where its layer comes from; empty where it was there.
    """

    stage: str
    key: str
    layer: str | None
    digest: str
    reused: bool = True
    seconds: float = 0.0
    log: Path | None = None
    reason: str = ""

    @property
    def grafted(self) -> bool:
        """Whether it was put together without a build."""
        return not self.reused and self.log is None

    @property
    def how(self) -> str:
        """`reused`, `grafted` or `built`."""
        return "reused" if self.reused else "grafted" if self.grafted else "built"


# The image of a stage that isn't there, whether it was grafted, and why or why not: see `Builder._obtain`.
_Obtain = Callable[[Stage, Built | None, str | None, Path], tuple[Manifest, bool, str]]


class Builder:
    """Brings stages into the registry; one for all threads of a run.

    Args:
        settings: where registry and database are, and what builds need.
        registry: the registry of the settings.
        graft: whether layers may be carried over from other parents.
    """

    def __init__(self, settings: Settings, registry: Registry, *, graft: bool = True) -> None:
        self._settings, self._registry, self._graft = settings, registry, graft
        self._database = open_database(settings.database)
        self._ledger, trust = Ledger(self._database), Trust(settings, self._database)
        self._signatures = Signatures(registry, trust)
        self._maker, self._layers = StageBuilder(settings, registry), Layers(settings, registry, trust)

    def build(self, stage: Stage, parent: Built | None) -> Built:
        """Find a stage by its key; graft or make it where it isn't there.

        Raises:
            RefitError: a step failed, the disk is full, or the registry or the mirror doesn't do its part.
        """
        return self._bring(stage, parent, self._obtain, self._patience(stage))

    def graft(self, stage: Stage, parent: Built) -> Built:
        """Find a stage by its key, or graft it; waits for nobody.

        Raises:
            NotCarried: it has to be made.
            RefitError: another run is at it, or the registry doesn't do its part.
        """
        return self._bring(stage, parent, self._grafted, 0)

    def _bring(self, stage: Stage, parent: Built | None, obtain: _Obtain, patience: float) -> Built:
        started = monotonic()
        inputs = self._inputs(stage, parent.digest if parent else None)
        key, layer = key_of(inputs), self._layer_key(stage, parent.layer if parent else None)
        # Another run, here or elsewhere, may be at the same stage: then wait for it, and take what it made.
        waits = partial(progress.report, stage.name, State.waiting, "another run builds it")
        with lease(self._database, f"stage {key}", wait=patience, waits=waits) as mine:
            if digest := self._find(stage, Entry(key, "", inputs, 0.0), mine, carried=layer is not None):
                return Built(stage.name, key, layer, digest, seconds=monotonic() - started)
            log = self._settings.folder("logs", "stages") / f"{stage.name}-{key[:12]}.log"
            manifest, grafted, reason = obtain(stage, parent, layer, log)
            seconds = monotonic() - started
            digest, doubt = self._name(stage, manifest, Entry(key, manifest.digest, inputs, seconds), mine)
        progress.report(stage.name, State.done, doubt or ("grafted" if grafted else ""))
        reason = "; ".join(part for part in (reason, doubt) if part)
        return Built(stage.name, key, layer, digest, False, seconds, None if grafted else log, reason)

    def _patience(self, stage: Stage) -> float:
        """Seconds in which somebody else has made a stage for sure, after others that were there before it."""
        return _LONG_PROGRAMS * _IN_TURN * (2 if stage.wheels else 1) * self._settings.build_timeout_seconds

    def compare(self, stage: Stage, parent: Built, grafted: Built) -> tuple[Difference, ...]:
        """Make a stage that was grafted, and tell how what comes out differs; nobody finds what was made.

        Raises:
            RefitError: it can't be made.
        """
        below, image = (self._registry.manifest(self._registry.stages, each.digest) for each in (parent, grafted))
        log = self._settings.folder("logs", "stages") / f"{stage.name}-{grafted.key[:12]}-again.log"
        manifest, _ = self._make(stage, parent, log)
        return self._layers.compare(stage, below, image, manifest)

    def plan(self, graph: Graph, *, thorough: bool = False) -> Plan:
        """The plan of a build of these stages; nothing is started for it.

        Args:
            graph: the stages to build.
            thorough: also look whether the registry still has all blobs of what would be reused.
        """
        latest = self._ledger.latest([stage.name for stage in graph.everything()])
        tags = frozenset(self._registry.tags(self._registry.stages))
        present = partial(self._present, tags)
        layers = stages.kept_layers(tags)
        first = plan.make(graph, self._inputs, self._layer_key, present, layers, latest)
        if not thorough or not (broken := self._broken(first)):
            return first

        def whole(keys: Collection[str]) -> Mapping[str, str]:
            return {key: digest for key, digest in present(keys).items() if digest not in broken}

        return plan.make(graph, self._inputs, self._layer_key, whole, layers, latest)

    def _broken(self, planned: Plan) -> set[str]:
        """The digests of stages that would be reused though the registry has lost a part of them."""
        digests = {step.digest for step in planned.steps.values() if step.digest}
        manifests = each(partial(self._registry.find, self._registry.stages), digests)
        parts = {str(part["digest"]) for manifest in manifests.values() if manifest for part in manifest.parts}
        found_parts = each(partial(self._registry.has_blob, self._registry.stages), parts)
        return {
            digest
            for digest, manifest in manifests.items()
            if manifest is None or not all(found_parts[str(part["digest"])] for part in manifest.parts)
        }

    def _inputs(self, stage: Stage, parent_digest: str | None) -> Inputs:
        return stages.inputs(stage, parent_digest, self._maker.tools(stage))

    def _layer_key(self, stage: Stage, below: str | None) -> str | None:
        return stages.layer_key(stage, below, self._maker.tools(stage))

    def _present(self, tags: Collection[str], names: Collection[str]) -> Mapping[str, str]:
        """Keys → digests, of those that are among the registry's tags.

        The digest that counts for a key stands in the ledger; one that isn't there counts if it was signed.
        """
        listed = [name for name in names if name in tags]
        recorded = self._ledger.digests(listed)
        unrecorded = [name for name in listed if name not in recorded and signature_tag(name) in tags]
        signed = each(self._signatures.of, unrecorded)
        return {**recorded, **{name: digest for name, digest in signed.items() if digest}}

    def _find(self, stage: Stage, entry: Entry, mine: Lease, *, carried: bool) -> str | None:
        """The digest of a stage that is there as a whole, and that counts for its key.

        The target of the tag is not asked for: everybody who may push can move it. Where it points elsewhere, or its
        builder died right before it did that, it is put right.
        """
        recorded = self._ledger.digests([entry.key]).get(entry.key)
        # By a Refit with another database, since this run has listed the tags: a layer is found then, and carried.
        unsigned = carried and not self._registry.may_have(self._registry.stages, signature_tag(entry.key))
        digest = recorded or ("" if unsigned else self._signatures.of(entry.key))
        manifest = self._whole(digest) if digest else None
        if manifest is None:
            return None
        if not recorded:
            self._ledger.record(stage.name, replace(entry, digest=manifest.digest), mine)
        if self._registry.digest(self._registry.stages, entry.key) != manifest.digest:
            self._signatures.sign(entry.key, manifest)
            self._registry.put_manifest(self._registry.stages, entry.key, manifest.content, manifest.media_type)
        progress.report(stage.name, State.reused)
        return manifest.digest

    def _whole(self, reference: str) -> Manifest | None:
        """A stage's manifest, if the registry has it and all that it names."""
        manifest = self._registry.find(self._registry.stages, reference)
        return manifest if manifest and not self._registry.missing(self._registry.stages, manifest) else None

    def _obtain(self, stage: Stage, parent: Built | None, layer: str | None, log: Path) -> tuple[Manifest, bool, str]:
        """The image of a stage that isn't there, whether it was grafted, and why or why not."""
        if layer is None or parent is None:
            manifest, note = self._make(stage, parent, log)
            if parent is None:  # most that is grafted stands on a base
                before = self._ledger.latest([stage.name]).get(stage.name)
                self._layers.look_at(manifest, before.digest if before else "")
            return manifest, False, note
        with suppress(NotCarried):
            return self._grafted(stage, parent, layer, log)
        # The same layer may be wanted on another parent just now, here or elsewhere: it is made once for both.
        with lease(self._database, f"layer {layer}", wait=self._patience(stage)):
            try:
                return self._grafted(stage, parent, layer, log)
            except NotCarried as obstacle:
                below = self._below(parent)
                manifest, note = self._make(stage, parent, log)
                reason = f"{obstacle}; {note}" if note else str(obstacle)
                return self._layers.keep(stage, layer, below, manifest), False, reason

    def _grafted(self, stage: Stage, parent: Built | None, layer: str | None, _: Path) -> tuple[Manifest, bool, str]:
        """As `_obtain`, where nothing has to be made."""
        if not self._graft or layer is None or parent is None:
            raise NotCarried("grafting was not wanted" if layer and parent else "only closed stages are grafted")
        image, origin = self._layers.carry(stage, layer, self._below(parent))
        return image, True, origin

    def _below(self, parent: Built) -> Manifest:
        return self._registry.manifest(self._registry.stages, parent.digest, recall=True)

    def _make(self, stage: Stage, parent: Built | None, log: Path) -> tuple[Manifest, str]:
        """Make a stage, and before it its wheels, where nobody has; returns it, and with which wheels, in words."""
        below, wheels = parent.digest if parent else None, self.build(stage.wheels, parent) if stage.wheels else None
        manifest = self._maker.make(stage, below, log, wheels.digest if wheels else None)
        return manifest, f"{wheels.stage} was {wheels.how} as {wheels.digest}" if wheels else ""

    def _name(self, stage: Stage, made: Manifest, entry: Entry, mine: Lease) -> tuple[str, str]:
        """Let the stage be found by its key, as what came first; returns that digest, and a doubt in words."""
        counts = self._ledger.record(stage.name, entry, mine)
        manifest, doubt = made, ""
        if counts != made.digest:
            before, first = counts, self._whole(counts)
            if first:
                manifest, what = first, f"that one counts; they differ in {self._differing(first, made)}"
            else:
                self._ledger.forget(entry.key, mine)
                counts, what = self._ledger.record(stage.name, entry, mine), "which the registry has lost"
            doubt = f"not deterministic: {made.digest} came out now, and before {before}, {what}"
            logger.warning("%s is %s", stage.name, doubt)
        self._signatures.sign(entry.key, manifest)
        self._registry.put_manifest(self._registry.stages, entry.key, manifest.content, manifest.media_type)
        return counts, doubt

    def _differing(self, before: Manifest, manifest: Manifest) -> str:
        """The differences between two images of one stage, in words."""
        try:
            differences = [f"{each.sort} {each.name}" for each in self._layers.differences(before, manifest)]
        except RefitError as error:  # the stage is there all the same
            return f"nobody knows what: {error.what}"
        return some(differences, _SHOWN)
