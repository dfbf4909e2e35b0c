"""The volumes of a session beside its home, as a Pod has them. Pure.

A volume is known by the name of its claim, or by that and a folder in it: `refit-shared-data/all`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.sessions.model import HomeRef, Session, Volume


def claim_of(ref: HomeRef) -> str:
    """The name of the claim of a home or a volume."""
    return ref.partition("/")[0]


def folder_of(ref: HomeRef) -> str:
    """The folder in its claim in which a volume is; empty: the claim has nothing else."""
    return ref.partition("/")[2]


def name_of(volume: Volume) -> str:
    """The name that a volume of a session has in its Pod."""
    return f"volume-{volume.name}"


def volumes(session: Session) -> list[dict[str, Any]]:
    """The claims of a session's volumes."""
    return [{"name": name_of(each), "persistentVolumeClaim": source(each)} for each in session.volumes]


def source(volume: Volume) -> dict[str, Any]:
    """The claim of a volume; one that is read alone can't be written to by any container of the Pod."""
    return {"claimName": claim_of(volume.ref), "readOnly": volume.read_only}


def mounts(session: Session) -> list[dict[str, Any]]:
    """Where a container has them."""
    return [mount(each) for each in session.volumes]


def mount(volume: Volume) -> dict[str, Any]:
    """Where a container has a volume."""
    folder = folder_of(volume.ref)
    below: Mapping[str, str] = {"subPath": folder} if folder else {}
    return {"name": name_of(volume), "mountPath": volume.path, "readOnly": volume.read_only, **below}


def group(session: Session) -> int:
    """The group that a storage driver gives the files of a session's claims to, where it does so.

    Sessions that share a volume need one that all have: a driver changes the group of all files there whenever a Pod
    with another one begins.
    """
    return 0 if any(volume.shared for volume in session.volumes) else session.uid
