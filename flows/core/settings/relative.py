"""Relative paths, which would mean another place in another working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flows.core.documents import Mistake

if TYPE_CHECKING:
    from flows.core.settings import Settings


def relative(settings: Settings) -> Iterator[Mistake]:
    """The paths that would be another one in another working directory: the worker's, for instance."""
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    if home := os.environ.get("REFIT_HOME"):
        values["home"] = Path(home)
    if file := re.match(r"sqlite[^:]*:///([^/:].*)", settings.database_url):
        values["database_url"] = Path(file[1])
    for name, value in values.items():
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and not path.is_absolute():
                yield Mistake(Path(f"REFIT_{name.upper()}"), 0, f"{str(path)!r} is relative", "write the whole path")
