"""Variables that `start-session` hands on to the program of a container, and texts beside it for people."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from flows.catalog import load
from tests.support.machine import ROOT

STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# As the init of a container does it: blocked, ignored, or both; an exec keeps that.
INIT = """
import os, signal, sys
signals = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
for each in signals:
    signal.signal(each, signal.SIG_IGN)
os.execv("/bin/sh", ["sh", *sys.argv[1:]])
"""


def test_ctrl_z_reaches_what_the_container_starts_though_its_init_blocks_it() -> None:
    script = str(ROOT / "snippets/base/files/start-session")
    call = ["python3", "-c", INIT, script, "cat", "/proc/self/status"]
    status = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    for mask in ("SigBlk", "SigIgn"):
        (value,) = re.findall(rf"{mask}:\s*([0-9a-f]+)", status)
        assert not any(int(value, 16) >> (each - 1) & 1 for each in STOPPING), mask


@pytest.mark.parametrize("base", sorted(path.name for path in (ROOT / "base").iterdir() if path.name != "cuda"))
def test_rsync_is_in_each_image_as_the_docs_promise(base: str) -> None:
    assert "rsync" in load.load_catalog(ROOT).bases[base].packages
    assert "rsync" in (ROOT / "docs/sessions.md").read_text()
