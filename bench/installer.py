"""Installers of Python packages: uv or pip, for both Python stages of jupyter-minimal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from bench.matrix import scratch
from bench.results import Row
from flows.catalog import load
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.locks import freshness

ROOT = Path(__file__).parents[1]
PROFILE = "jupyter-minimal-deb12-py311"
INSTALLERS = ("uv", "pip")
AGAIN = 3


def run() -> list[Row]:
    """Both Python stages of jupyter-minimal with uv and with pip: cold, then warm, the median of three."""
    with scratch() as settings:
        chains = {installer: _chain(installer, settings) for installer in INSTALLERS}
        builder = Builder(settings, Registry(settings), graft=False)
        base = builder.build(chains["uv"][0], None)
        seconds = {
            name: [_build(chain[1:3], base, builder, n) for n in range(1 + AGAIN)] for name, chain in chains.items()
        }
    cold = _row("nothing downloaded", {name: first for name, (first, *_) in seconds.items()})
    warm = _row("everything downloaded", {name: median(more) for name, (_, *more) in seconds.items()})
    return [cold, warm]


def _chain(installer: str, settings: Settings) -> tuple[Stage, ...]:
    catalog = load.load_catalog(ROOT)
    assembler = Assembler(catalog, partial(freshness.resolve, settings=settings), installer)
    return assembler.chain(load.profile(catalog, "2026a", PROFILE))


def _build(stages: Sequence[Stage], base: Built, builder: Builder, number: int) -> float:
    """Build stages that nobody has built yet, with the same content; returns how long it took (seconds)."""
    built = [base]
    for stage in stages:
        built.append(builder.build(replace(stage, abi={**stage.abi, "run": str(number)}), built[-1]))
    assert all(one.how == "built" for one in built[1:])
    return sum(one.seconds for one in built[1:])


def _row(when: str, seconds: dict[str, float]) -> Row:
    ours, peer = seconds["uv"], seconds["pip"]
    name = f"both Python stages of jupyter-minimal, {when}"
    return Row(name, "s", "faster with uv than with pip", ours, ours < peer, {"pip": peer})
