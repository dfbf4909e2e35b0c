"""Homes of tests begin with what a machine in use has: facts about it, the base's packages, the first image's layers.

To find them out or to bring them takes 1, 5 and 23 seconds of CPU in each home. They are made once, and where one of
them doesn't hold any more, Refit finds it out anew. A test of just that has a home where nothing is yet.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools

# A storage without images whose layers are another's: each has its own folders to mount with, and a link to the files.
# Locks stay behind, for they say who has changed which storage last.
_SKELETON = """
cd "$1" && mkdir -p skeleton/overlay
cp -a storage/overlay-layers skeleton/ && cp -a storage/overlay/l skeleton/overlay/
rm -f skeleton/overlay-layers/*.lock
for layer in storage/overlay/*/link; do
    layer=${layer%/link}; own=skeleton/${layer#storage/}
    mkdir -m 0700 "$own" && ln -s "$1/$layer/diff" "$own/diff"
    for part in "$layer"/*; do
        name=${part##*/}
        case $name in diff) ;; merged|work|empty) mkdir -m 0700 "$own/$name" ;; *) cp -a "$part" "$own/" ;; esac
    done
done
"""
_GIVE = 'for storage in containers builds; do [ -e "$2/$storage" ] || cp -a "$1/skeleton" "$2/$storage"; done'


@dataclass(frozen=True)
class UsedHome:
    """A folder with all of that; its layers are linked, and so it stays where it is."""

    folder: Path

    def make(self, settings: Settings, image: str) -> None:
        """Make it from a home whose registry has this image (digest); nobody else may do so at the same time."""
        command.run(["rm", "-rf", "--one-file-system", self.folder], root=True)
        self.folder.mkdir(parents=True)
        shutil.copytree(settings.folder("cache", "system"), self.folder / "system")
        programs: list[str | Path] = [
            "buildah",
            "--root",
            self.folder / "storage",
            "--runroot",
            tools.runtime_folder(settings) / "used",
        ]
        source = f"docker://{settings.registry_host}/{settings.repository}/stages@{image}"
        command.run([*programs, "pull", "--quiet", "--tls-verify=false", source], root=True)
        command.run(["sh", "-euc", _SKELETON, "skeleton", self.folder], root=True)
        facts = tools.facts(settings)
        if facts.seccomp:
            shutil.copy(facts.seccomp, self.folder / "seccomp.json")
        write_whole(self.folder / "host.json", json.dumps(asdict(facts)))

    def give(self, settings: Settings) -> None:
        """Let a home begin with it."""
        facts = tools.Facts(**json.loads((self.folder / "host.json").read_text()))
        if facts.seccomp:
            own = settings.folder() / "seccomp.json"
            shutil.copy(self.folder / "seccomp.json", own)
            facts = replace(facts, seccomp=str(own))
        write_whole(settings.folder() / "host.json", json.dumps(asdict(facts)))
        shutil.copytree(self.folder / "system", settings.folder("cache", "system"), dirs_exist_ok=True)
        command.run(["sh", "-euc", _GIVE, "give", self.folder, settings.home], root=True)
