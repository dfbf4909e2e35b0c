"""The files in claims of sessions, as their users would write and read them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flows.sessions.kubernetes import manifests, volume_mounts
from flows.sessions.kubernetes.snapshot_ways import PART
from flows.sessions.kubernetes.volume_mounts import claim_of
from flows.sessions.model import HOME, HomeRef
from tests.support.cluster import kubectl
from tests.support.volume_snapshots import folder_of
from tests.support.waiting import wait_until


class FilesOfClaims:
    """Implements `homes_contract.Files`: what the user of a session would do, done in the folder of its volume."""

    def _folder(self, place: HomeRef) -> Path:
        claim, inside = claim_of(place), volume_mounts.folder_of(place)
        wait_until(lambda: kubectl("get", "pvc", claim, "-o", "jsonpath={.status.phase}") == "Bound")
        labels = json.loads(kubectl("get", "pvc", claim, "-o", "json"))["metadata"]["labels"]
        of_volume = labels.get(manifests.VOLUME) or labels.get(PART)
        return folder_of(claim) / (inside if of_volume else HOME.rpartition("/")[2])

    def _uid(self, place: HomeRef) -> int:
        told = json.loads(kubectl("get", "pvc", claim_of(place), "-o", "json"))
        return int(told["metadata"]["annotations"][manifests.UID])

    def write(self, place: HomeRef, path: str, text: str) -> None:
        top, uid = self._folder(place), self._uid(place)
        file = top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for each in (file, *file.relative_to(top).parents):
            os.chown(top / each, uid, 0)

    def delete(self, place: HomeRef, path: str) -> None:
        (self._folder(place) / path).unlink()

    def all(self, place: HomeRef) -> dict[str, str]:
        top = self._folder(place)
        return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}
