"""Work whose result is the same each time is done once in a process that runs tests.

The catalog of this repository takes 60 ms of CPU to read, and is read by each look at a rollout. The commands of
`refit` take 100 ms to put together, for each call of the command line. Programs that tests start do as ever.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import typer.main
import typer.testing

from flows.catalog import load
from flows.catalog.model import Catalog

ROOT = Path(__file__).parents[2]

_load_catalog = load.load_catalog
_of_this_repository = cache(_load_catalog)


def load_catalog(root: Path) -> Catalog:
    """As `flows.catalog.load` has it, but for the catalog of this repository, which no test changes."""
    return _of_this_repository(root) if root == ROOT else _load_catalog(root)


# Modules that are imported later take it from there.
for module in [*sys.modules.values()]:
    if getattr(module, "__dict__", {}).get("load_catalog") is _load_catalog:
        vars(module)["load_catalog"] = load_catalog
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)
