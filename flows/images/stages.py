"""Stages: the steps of an assembly, how they hang together, and the key by which each is found again. Pure.

A stage's key is the hash of everything that goes in: rendered instructions, files, locks, tool versions, and the
parent's *output* digest. Date, release and tag are not in it, nor is the state of any package index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """How a stage is made: bootstrapped from a distribution's packages, or by instructions on its parent."""

    bootstrap = "bootstrap"
    instructions = "instructions"


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
        suite: the distribution's release that is bootstrapped, e.g. `bookworm`; empty for instructions.
    """

    name: str
    kind: Kind
    parent: str | None
    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    system: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    suite: str = ""


@dataclass(frozen=True)
class Graph:
    """All distinct stages of some profiles, parents before children, and the top stage of each profile."""

    stages: Mapping[str, Stage]
    tops: Mapping[str, str]

    def ancestry(self, top: str) -> tuple[Stage, ...]:
        """The stages from the base up to `top`."""
        stage = self.stages[top]
        return (*(self.ancestry(stage.parent) if stage.parent else ()), stage)

    def children(self, name: str) -> tuple[Stage, ...]:
        """The stages that stand directly on `name`."""
        return tuple(stage for stage in self.stages.values() if stage.parent == name)


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


def key(stage: Stage, parent_digest: str | None, tools: Mapping[str, str]) -> str:
    """The stage's key: 64 hex digits.

    Args:
        stage: what is built.
        parent_digest: `sha256:…` of the parent's manifest in the registry; none for a base.
        tools: program → version, for the programs whose version can change the output.
    """
    inputs = {
        "kind": stage.kind,
        "parent": parent_digest,
        "text": stage.text,
        "files": {path: hashlib.sha256(content).hexdigest() for path, content in sorted(stage.files.items())},
        "system": sorted(stage.system),
        "requirements": stage.requirements,
        "suite": stage.suite,
        "tools": dict(sorted(tools.items())),
    }
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
