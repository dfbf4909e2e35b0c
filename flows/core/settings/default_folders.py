"""The folders that count where nobody chose one: Refit's home and the catalog."""

from __future__ import annotations

import os
from pathlib import Path

SHIPPED_CATALOG = Path(__file__).resolve().parents[3]


def default_home() -> Path:
    """`REFIT_HOME`, else `refit` in the XDG state folder: Refit's database, logs, storage and homes of sessions."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(os.environ.get("REFIT_HOME") or Path(state) / "refit").absolute()


def default_catalog() -> Path:
    """The working directory where it is a catalog, or a part of one; else the one that came with this Refit.

    Of a part, it is said what it lacks: a person who works in it doesn't mean another one.
    """
    here = Path.cwd()
    is_meant = (here / "releases").is_dir() or ((here / "bundles").is_dir() and (here / "ides").is_dir())
    return here if is_meant else SHIPPED_CATALOG
