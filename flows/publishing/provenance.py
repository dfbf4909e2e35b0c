"""The provenance of an image: how it was made, as SLSA v1 in an in-toto statement.

It is the same for the same stages; only its parts about the run may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from flows.catalog.model import Profile
from flows.images.build import Built
from flows.images.ledger import Ledger
from flows.images.stages import Inputs, Stage
from flows.publishing.sbom import packages_of, suite_of
from flows.signing.trust import statement as said

PROVENANCE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:io.refit:stages:v1"
_BUILDER = "urn:io.refit:builder"


@dataclass(frozen=True)
class Made:
    """A stage of an image and how it came about.

    Attributes:
        stage: its name.
        key: its key.
        digest: `sha256:…` of what came out.
        inputs: all that went in.
        how: `built`, `reused` or `grafted`.
        why: in words; empty where nothing more is known.
    """

    stage: str
    key: str
    digest: str
    inputs: Inputs
    how: str
    why: str = ""


def predicate(profile: Profile, stages: Iterable[Stage], origins: Iterable[Made], run: str = "") -> dict[str, object]:
    """How an image was made, as SLSA v1: what was asked, what went in, stage by stage.

    Args:
        profile: the profile that was asked for.
        stages: those of its image.
        origins: how each of them came about, base first.
        run: the name of this run; nothing else in it is of one run alone but `how` and `why` of the stages.
    """
    stages, origins = tuple(stages), tuple(origins)
    suite = suite_of(stages)
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"profile": profile.stem, "release": profile.release},
            "internalParameters": {
                "stages": [{"name": m.stage, "key": m.key, "inputs": m.inputs} for m in origins],
            },
            "resolvedDependencies": [{"uri": package.purl(suite)} for package in packages_of(stages)],
        },
        "runDetails": {
            "builder": {"id": _BUILDER, "version": {"refit": version("refit"), **_tools(origins)}},
            "metadata": {"invocationId": run} if run else {},
            "byproducts": [
                {
                    "name": m.stage,
                    "digest": _digest(m.digest),
                    "annotations": {"how": m.how, **({"why": m.why} if m.why else {})},
                }
                for m in origins
            ],
        },
    }


def asked(profile: str, release: str) -> dict[str, object]:
    """All that is known of how an image was made whose stages nobody knows: for what."""
    named = {"profile": profile, "release": release}
    return {
        "buildDefinition": {"buildType": BUILD_TYPE, "externalParameters": named},
        "runDetails": {"builder": {"id": _BUILDER, "version": {"refit": version("refit")}}},
    }


def statement(name: str, digest: str, predicate: Mapping[str, object]) -> dict[str, object]:
    """How an image (`sha256:…`) was made, as an in-toto statement."""
    return said(PROVENANCE_TYPE, name, digest, predicate)


def _tools(origins: Iterable[Made]) -> dict[str, str]:
    return {name: number for m in origins for name, number in sorted(m.inputs.get("tools", {}).items())}


def _digest(digest: str) -> dict[str, str]:
    kind, _, digits = digest.partition(":")
    return {kind: digits}


def made_of(built: Sequence[Built], ledger: Ledger) -> tuple[Made, ...]:
    """How the stages of an image came about, with what went in when they were built."""
    entries = ledger.of([stage.key for stage in built])
    return tuple(
        Made(
            stage=stage.stage,
            key=stage.key,
            digest=stage.digest,
            inputs=entries[stage.key].inputs if stage.key in entries else {},
            how=stage.how,
            why=stage.reason,
        )
        for stage in built
    )
