"""Settings as variables of the environment: for services and for programs that read them again."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import SecretStr

from flows.core import documents
from flows.core.settings import Settings


def variables(settings: Settings) -> dict[str, str]:
    """The `REFIT_…` variables with which another process loads the same settings; secrets are among them."""
    chosen = {"home", "catalog", *settings.model_fields_set}
    return {f"REFIT_{name.upper()}": _text(getattr(settings, name)) for name in sorted(chosen)}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, documents.Document):
        return value.model_dump_json(exclude_unset=True)
    return str(value) if isinstance(value, str | Path) else json.dumps(value, default=_text)
