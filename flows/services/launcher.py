"""Becomes a service: notes itself, opens its log, and keeps nothing of the supervisor's environment.

It has the standard library and nothing else, for a service that died waits for it: `python -I launcher.py FOLDER`. The
file `launch.json` in that folder says what to become. It is its owner's alone: secrets are in the environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

LAUNCH = "launch.json"


def main(folder: Path) -> None:
    """Become the service of this folder."""
    launch = json.loads((folder / LAUNCH).read_text(encoding="utf-8"))
    note(Path(launch["notes"]))
    log = os.open(launch["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for opened, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(opened, stream)
    os.chdir(launch["cwd"])
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and a program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    os.execvpe(launch["argv"][0], launch["argv"], launch["environment"])


def note(folder: Path) -> None:
    """Note this process in a folder, as `flows.core.programs.process_records` reads it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    started = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{os.getpid()} {boot} {started}"
    draft.write_text(f"{boot} {started}\n", encoding="ascii")
    draft.rename(folder / str(os.getpid()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
