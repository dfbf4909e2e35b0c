"""Finding out that nothing moved: system packages of a base, and the locked Python packages of a bundle."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.results import Row, seconds_of
from flows.catalog import load
from flows.core.programs import command
from flows.core.settings import Settings
from flows.locks import apt, freshness
from flows.locks.freshness import Verdict

ROOT = Path(__file__).parents[1]


def run() -> list[Row]:
    """Finding out that nothing moved, on the real mirror and the real index; the second look counts."""
    bundle = os.environ.get("SSL_CERT_FILE")
    with tempfile.TemporaryDirectory(prefix="refit-bench-") as folder:
        settings = Settings(home=Path(folder), ca_bundle=Path(bundle) if bundle else None)
        return [_system(settings), _python(settings)]


def _system(settings: Settings) -> Row:
    base = load.load_catalog(ROOT).bases["deb12"]
    freshness.resolve(base, settings)
    ours = seconds_of(lambda: freshness.resolve(base, settings))
    sources = settings.folder("bench") / "sources.list"
    sources.write_text(apt.sources(base.config.suite, settings.debian_mirror))
    options = ["--mode=root", "--variant=minbase", "--simulate", f"--include={','.join(base.packages)}"]
    argv = ["mmdebstrap", *options, base.config.suite, "-", str(sources)]
    peer = seconds_of(lambda: command.run(argv, root=True, env=apt.proxy(settings)))
    name = "system packages of a base: nothing moved"
    return Row(name, "s", "≤ 0.2 s", ours, ours <= 0.2, {"mmdebstrap --simulate": peer})


def _python(settings: Settings) -> Row:
    folder = load.load_catalog(ROOT).bundles["minimal"].pythons["py311"]
    freshness.keep(freshness.look_at_locks({folder: ""}, settings)[folder], settings)
    looks: list[freshness.LockLook] = []
    ours = seconds_of(lambda: looks.append(freshness.look_at_locks({folder: ""}, settings)[folder]))
    same = looks[0].finding.verdict is Verdict.same
    return Row(f"{len(looks[0].pages)} locked Python packages: nothing moved", "s", "≤ 2 s", ours, same and ours <= 2)
