"""The names of the Python packages that a bundle asks for, as people write them into its Pipfiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.catalog.model import Bundle
from flows.core import documents
from flows.core.documents import Mistakes


def libraries(bundle: Bundle, python: str) -> tuple[str, ...]:
    """The packages that a bundle asks for, its own before those of the bundles that it extends.

    Their dependencies are left out, and so is a Pipfile that can't be read: loading the catalog tells of that.

    Args:
        bundle: which.
        python: e.g. `py311`.
    """
    files = (folder / python / "Pipfile" for folder in reversed(bundle.lineage or (bundle.folder,)))
    return tuple(dict.fromkeys(name for file in files for name in _asked(file)))


def _asked(file: Path) -> Iterator[str]:
    try:
        content = documents.parse_toml(documents.bounds.read_text(file), file)
    except (OSError, UnicodeDecodeError, Mistakes):
        return
    packages = content.get("packages")
    yield from packages if isinstance(packages, Mapping) else ()
