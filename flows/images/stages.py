"""Stages: the steps of an assembly, how they hang together, and the key by which each is found again. Pure.

A stage's key is the hash of everything that goes in: rendered instructions, files, locks, tool versions, and the
parent's *output* digest. Date, release and tag are not in it, nor is the state of any package index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

# Sort of input → name → value, e.g. `files` → path → hash.
Inputs = Mapping[str, Mapping[str, str]]

# Where the instructions of a stage of wheels leave these.
WHEELS = "/wheels"

# Where the npm packages of an IDE are, and CUDA: no other stages write there, nor do these look at what others wrote.
IDE, CUDA = "/opt/ide", ("/usr/local/cuda", "/etc/profile.d/cuda.sh")


_LAYER = "layer-"


class Kind(StrEnum):
    """How a stage is made.

    `bootstrap`: from a distribution's packages. `instructions`: anything at all, on its parent or, where it is a base,
    on a public image. `closed`: instructions that write nothing but their own paths and read of their parent no more
    than its `abi`, so that their layer can be carried from one parent to another. `wheels`: instructions that make
    Python packages of their sources; the wheels in WHEELS come out, without their parent, which is in no key.
    """

    bootstrap = "bootstrap"
    instructions = "instructions"
    closed = "closed"
    wheels = "wheels"


@dataclass(frozen=True)
class Stage:
    """One step of the assembly.

    Attributes:
        name: unique in a graph and stable over releases, e.g. `base-deb12-py311`.
        kind: how it is made.
        parent: name of the stage that it stands on; none for a base.
        text: the rendered Containerfile without its FROM.
        files: path in the build context → content.
        system: exact system packages as `name=version`, sorted.
        requirements: lines of the Python lock, with hashes.
        suite: the distribution's release that its system packages come from, e.g. `bookworm`; empty without any.
        family: the format of these packages, `deb` or `rpm`.
        image: the public image that a base stands on, by digest; empty: on none.
        abi: all that a closed stage depends on of what is below it: name → version, e.g. `python` → `3.11`.
        writes: the folders that a closed stage's programs may write to.
        wheels: the stage of those of its Python packages that have no wheel, made on the base, and only where this one
            has to be made.
        confined: the person whose recipe it has in it or below it, which nobody vouches for: it is made behind walls,
            and its layers are never those of somebody else. Empty: it is an operator's.
    """

    name: str
    kind: Kind
    parent: str | None
    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    system: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    suite: str = ""
    family: str = "deb"
    image: str = ""
    abi: Mapping[str, str] = field(default_factory=dict)
    writes: tuple[str, ...] = ()
    wheels: Stage | None = None
    confined: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the stages without which it can't be made."""
        return tuple(name for name in (self.parent, self.wheels.name if self.wheels else None) if name)


@dataclass(frozen=True)
class Graph:
    """All distinct stages of some profiles, parents before children, and the top stage of each profile."""

    stages: Mapping[str, Stage]
    tops: Mapping[str, str]

    def ancestry(self, top: str) -> tuple[Stage, ...]:
        """The stages from the base up to `top`."""
        stage = self.stages[top]
        return (*(self.ancestry(stage.parent) if stage.parent else ()), stage)

    def everything(self) -> tuple[Stage, ...]:
        """All stages, and before each that of its wheels; a stage of wheels that several need is there once."""
        return _with_wheels(self.stages.values())

    def made_of(self, top: str) -> tuple[Stage, ...]:
        """All stages without which there would be no `top`: its ancestry, and the wheels in it."""
        return _with_wheels(self.ancestry(top))

    def children(self, name: str) -> tuple[Stage, ...]:
        """The stages that stand directly on `name`."""
        return self._children.get(name, ())

    @cached_property
    def _children(self) -> Mapping[str, tuple[Stage, ...]]:
        children: dict[str, tuple[Stage, ...]] = {}
        for stage in self.stages.values():
            if stage.parent:
                children[stage.parent] = (*children.get(stage.parent, ()), stage)
        return children


def _with_wheels(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    return tuple({part.name: part for stage in stages for part in (stage.wheels, stage) if part}.values())


def join(chains: Mapping[str, Iterable[Stage]]) -> Graph:
    """One graph of many chains (profile → its stages, base first): equal stages are there once.

    Raises:
        ValueError: two different stages have the same name, which is a bug of the recipe that named them.
    """
    stages: dict[str, Stage] = {}
    tops: dict[str, str] = {}
    for profile, chain in chains.items():
        for stage in chain:
            if stages.setdefault(stage.name, stage) != stage:
                raise ValueError(f"two different stages are called {stage.name!r}")
            tops[profile] = stage.name
    return Graph(stages, tops)


def of_a_person(stages: Sequence[Stage], owner: str) -> tuple[Stage, ...]:
    """The stages of a profile, base first, of a person's own bundle: all above the base are confined.

    A wheel of the lowest layer runs its code (`.pth`) in the steps of all that stand on it.

    Args:
        stages: of one profile.
        owner: the person; empty: the bundle is an operator's.
    """
    base, *above = stages
    if not owner:
        return tuple(stages)
    return (
        base,
        *(replace(stage, confined=owner, wheels=stage.wheels and _confined(stage.wheels, owner)) for stage in above),
    )


def _confined(stage: Stage, owner: str) -> Stage:
    return replace(stage, confined=owner)


def inputs(stage: Stage, parent_digest: str | None, tools: Mapping[str, str]) -> Inputs:
    """Everything that goes into a stage: its key is the hash of that, and a changed key is explained by it.

    Args:
        stage: the stage to build.
        parent_digest: `sha256:…` of the parent's manifest in the registry; none for a base. Wheels don't depend on it.
        tools: program → version, for the programs whose version can change the output.
    """
    lock = "\n".join(stage.requirements)
    writes = " ".join(stage.writes)
    origin = {"suite": stage.suite, "image": stage.image}
    instructions = {"text": stage.text, "kind": stage.kind, **origin, "writes": writes}
    instructions |= {"confined": stage.confined} if stage.confined else {}
    given = {
        "parent": {"digest": parent_digest} if parent_digest and stage.kind is not Kind.wheels else {},
        "instructions": {name: value for name, value in instructions.items() if value},
        "files": {path: hashlib.sha256(content).hexdigest() for path, content in stage.files.items()},
        "system": _versions(stage.system, "="),
        "python": _versions(stage.requirements, "=="),
        # Versions are what people want to see; the lines, with the hashes of the wheels, are what is installed.
        "lock": {"hash": hashlib.sha256(lock.encode()).hexdigest()} if lock else {},
        "abi": dict(stage.abi),
        "tools": dict(tools),
    }
    return {**given, "wheels": _flat(inputs(stage.wheels, None, {}))} if stage.wheels else given


def layer_key(stage: Stage, below: str | None, tools: Mapping[str, str]) -> str | None:
    """The key of a closed stage's layer, which is the same on every parent; none for other stages.

    Args:
        stage: the stage to build.
        below: the key of the parent's layer, if that is closed too. Programs may find in their folders what it left.
        tools: as in `inputs`.
    """
    if stage.kind is not Kind.closed:
        return None
    depends = {"layer": below} if below and set(stage.writes) - {IDE, *CUDA} else {}
    return key_of({**inputs(stage, None, tools), "parent": depends})


def local_name(digest: str) -> str:
    """The name that a stage with this digest has in the private storage of every machine."""
    return f"localhost/refit/stage:{digest.removeprefix('sha256:')}"


def layer_tag(layer: str, looked_up: Mapping[str, object]) -> str:
    """The tag under which the registry keeps the layer with this key that was made where this was looked up."""
    text = json.dumps(looked_up, sort_keys=True, separators=(",", ":"))
    return f"{_LAYER}{layer}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def kept_layers(tags: Iterable[str]) -> frozenset[str]:
    """The keys of the layers that are there, wherever they were made; `tags`: those of the repository of stages."""
    return frozenset(tag.removeprefix(_LAYER).rpartition("-")[0] for tag in tags if tag.startswith(_LAYER))


def key(stage: Stage, parent_digest: str | None, tools: Mapping[str, str]) -> str:
    """The stage's key: 64 hex digits. Arguments as in `inputs`."""
    return key_of(inputs(stage, parent_digest, tools))


def key_of(inputs: Inputs) -> str:
    """The key of a stage with these inputs."""
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Difference:
    """One input that two builds of a stage have otherwise; `None` where one of them doesn't have it.

    `sort` is one of those of `inputs`, e.g. `system`, and `name` what of that sort, e.g. `tmux`.
    """

    sort: str
    name: str
    old: str | None
    new: str | None


def differences(old: Inputs, new: Inputs) -> tuple[Difference, ...]:
    """The differences between `old` and `new`; both as `inputs` gives them."""
    return tuple(
        Difference(sort, name, before.get(name), after.get(name))
        for sort in dict.fromkeys((*new, *old))
        for before, after in [(old.get(sort, {}), new.get(sort, {}))]
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def _flat(inputs: Inputs) -> dict[str, str]:
    """The inputs of a stage's wheels, as one sort of its own inputs: `system gcc` → version."""
    return {f"{sort} {name}": value for sort, values in inputs.items() for name, value in values.items()}


def _versions(packages: Iterable[str], separator: str) -> dict[str, str]:
    """Name → version of `name=version`, without the options that follow a version in a line of a lock."""
    pairs = (package.partition(separator) for package in packages)
    return {name.strip(): rest.strip().split(" ")[0].rstrip(";\\") for name, _, rest in pairs}


@dataclass(frozen=True)
class Entry:
    """One build of a stage: key, digest, inputs (see `stages.inputs`), and how long it took (seconds)."""

    key: str
    digest: str
    inputs: Inputs
    seconds: float
