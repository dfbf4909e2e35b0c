"""Where sessions run from now on, as a person chooses it by a command: the key `engine` of settings.yaml."""

from __future__ import annotations

import yaml

from flows.core.atomic_files import write_whole
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings, load
from flows.core.settings.cluster import SessionEngine
from flows.sessions.store import Store


def choose(name: str, settings: Settings) -> Settings:
    """Write the engine into settings.yaml, unless the settings have it; returns the settings that hold from now on.

    Raises:
        RefitError: there is no such engine; the file or a variable says otherwise; or there are sessions, which the
            other engine doesn't know.
        Mistakes: the settings can't be.
    """
    if name not in list(SessionEngine):
        raise RefitError(f"There is no engine {name!r}.", hint=f"one of: {', '.join(SessionEngine)}.")
    wish = SessionEngine(name)
    if settings.engine is wish:
        return settings
    file = settings.home / "settings.yaml"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if "engine" in (yaml.safe_load(text) or {}) or "engine" in settings.model_fields_set:
        raise RefitError(
            f"The settings say that sessions run on {settings.engine}.",
            why=f"`engine` is set in {file}, or by REFIT_ENGINE.",
            hint=f"write `engine: {wish}` there, or use another REFIT_HOME.",
        )
    _check_unused(settings)
    end = "" if not text or text.endswith("\n") else "\n"
    settings.folder()
    write_whole(file, f"{text}{end}engine: {wish}\n", private=True)
    return load()


def _check_unused(settings: Settings) -> None:
    """Sessions of one engine are unknown to the other."""
    if names := [session.name for session in Store(open_database(settings.database)).sessions()]:
        raise RefitError(
            f"There are sessions on {settings.engine}: {', '.join(names)}.",
            why="Another engine doesn't know them, and would make them anew, without their homes.",
            hint="use another REFIT_HOME for the other engine, or `refit session rm` them first.",
        )
