"""The same real registry and base as in `tests/real`."""

from tests.real.conftest import base, base_recipe, base_stage, builder, registry, registry_server, shared

__all__ = ["base", "base_recipe", "base_stage", "builder", "registry", "registry_server", "shared"]
