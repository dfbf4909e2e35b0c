"""The command line program oras, which Debian has from 13 on: another reader of what we attach."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.support.mirror import ARCHIVE

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Lists and packages of another Debian than the machine's, in a folder of their own: nothing is installed.
_APT = """
Dir "{0}";
Dir::Etc::SourceParts "{0}";
Dir::Etc::SourceList "{0}/trixie.list";
Dir::State::Lists "{0}/lists";
Dir::State::Status "/dev/null";
Dir::Cache "{0}/cache";
APT::Sandbox::User "root";
"""


@dataclass(frozen=True)
class OrasProgram:
    """Asks a registry that speaks plain http; `home` stands for the home of a person who has no login there."""

    path: Path
    home: Path

    def json(self, *words: str) -> Any:
        """The JSON of a command."""
        return json.loads(self.run(*words, "--format", "json"))

    def run(self, *words: str) -> str:
        """The output of a command."""
        argv = [self.path, words[0], "--plain-http", *words[1:]]
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        done = subprocess.run(argv, cwd=self.home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def oras_program(folder: Path) -> Path:
    """The program of this machine, else that of Debian 13's package, fetched by apt into `folder` once."""
    if installed := shutil.which("oras"):
        return Path(installed)
    program = folder / "usr/bin/oras"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not program.exists():
            _fetch(folder)
    return program


def _fetch(folder: Path) -> None:
    (folder / "lists").mkdir(exist_ok=True)
    (folder / "cache").mkdir(exist_ok=True)
    (folder / "trixie.list").write_text(f"deb [signed-by={_KEYS}] {ARCHIVE}/debian trixie main\n")
    (folder / "apt.conf").write_text(_APT.format(folder))
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    for argv in (["apt-get", "-q", "update"], ["apt-get", "-q", "download", "oras"]):
        subprocess.run(argv, cwd=folder, env=environment, capture_output=True, check=True)
    [package] = folder.glob("oras_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
