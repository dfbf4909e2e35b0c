"""Real images of IDEs other than JupyterLab, each with the bundle that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flows.catalog.model import Access, Catalog
from flows.core.settings import Settings
from flows.images.build import Builder
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from tests.support.machine import FIRST, build_all
from tests.support.variants import variant


@dataclass(frozen=True)
class IdeImage:
    """Images of one profile that differ in nothing but a label, and how their IDE is reached."""

    profile: str
    access: Access
    digests: tuple[str, ...]


@dataclass(frozen=True)
class IdeImages:
    """Builds images of IDEs for sessions of the home that `settings` are of."""

    settings: Settings
    shared: Settings
    builder: Builder
    catalog: Catalog
    assembler: Assembler

    def build(self, ide: str, *names: str) -> IdeImage:
        """An image of this IDE for each name; its parts are built once."""
        chosen = self.catalog.ides[ide]
        first = next(profile for profile in self.catalog.releases["2026a"].profiles if profile.stem == FIRST)
        bundle = self.catalog.bundles.get(chosen.name, first.bundle)
        profile = replace(first, stem=f"{chosen.name}-{bundle.name}-deb12-py311", ide=chosen, bundle=bundle)
        top = build_all(self.builder, self.assembler.chain(profile))[-1]
        access, source = chosen.config.access, f"{self.shared.repository}/stages"
        labels = {"io.refit.access": access.model_dump_json()}
        registry = Registry(self.settings)
        digests = tuple(variant(self.settings, registry, top.digest, source, name, labels=labels) for name in names)
        return IdeImage(profile.stem, access, digests)
