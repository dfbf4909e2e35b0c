"""Homes and volumes as folders of this machine, which they are where Podman runs sessions. Pure."""

from __future__ import annotations

from pathlib import Path

from flows.sessions.homes.volumes import Part
from flows.sessions.model import HomeRef


def folder_of(ref: HomeRef) -> Path:
    """The folder of a home or volume, there or not."""
    return Path(ref)


def ref_of(folder: Path) -> HomeRef:
    """The home or volume in a folder."""
    return HomeRef(str(folder))


def beside(part: Part, home: Path) -> Path:
    """Where a copy of a part lies, if the home's is to be `home`: no name of a snapshot has a dot in it."""
    return home.with_name(f"{home.name}.{part.volume}") if part.volume else home
