"""The contract of scans of homes: derive a class from `ScanContract` and give it its fixtures."""

from __future__ import annotations

import json

from flows.compatibility.judge import Verdict
from flows.compatibility.obstacles import obstacles
from flows.compatibility.scan import of_image, scan
from flows.core.settings import Settings
from flows.sessions.engine import Engine
from flows.sessions.model import Session

_FURNISH = """
import os, pathlib, shutil, sys, venv
venv.create("project/.venv", symlinks=True)
for folder in (".local/bin", ".local/share/jupyter/kernels/mine", "tool"):
    os.makedirs(folder)
pathlib.Path(".local/share/jupyter/kernels/mine/kernel.json").write_text('{"argv": ["/bin/sh"]}')
shutil.copy(os.path.realpath(sys.executable), "tool/own")
shutil.copy("tool/own", b"tool/name \\xff.so")
os.symlink("/etc/shadow", ".bashrc")
os.mkfifo("tool/pipe")
"""
# Folders are left out: this itself changes their times of access.
_AS_IT_IS = """
import os
for folder, _, names in sorted(os.walk("/home/dev/")):
    for path in sorted(os.path.join(folder, name) for name in names):
        told = os.lstat(path)
        print(ascii(path), told.st_mode, told.st_size, told.st_atime_ns, told.st_mtime_ns)
"""


class ScanContract:
    """Fixtures: `settings`; `engine`; `session`, a new one that runs; `another`, an image other than its own."""

    def test_a_home_is_read_and_stays_as_it_is(
        self, settings: Settings, engine: Engine, session: Session, another: str
    ) -> None:
        engine.execute(session.container, ["python3", "-c", _FURNISH])
        before = engine.execute(session.container, ["python3", "-c", _AS_IT_IS])
        report = scan(settings, engine, session, another)
        assert report.verdict is Verdict.ok and report.files > 10, report
        assert (report.old, report.new) == (session.image, another)
        assert engine.execute(session.container, ["python3", "-c", _AS_IT_IS]) == before

    def test_files_that_a_new_image_would_break_are_an_obstacle(
        self, settings: Settings, engine: Engine, session: Session, another: str
    ) -> None:
        engine.execute(session.container, ["python3", "-c", _FURNISH])
        folder = settings.folder("cache", "compatibility")
        for note in folder.iterdir():
            note.unlink()
        of_image(settings, another)
        (note,) = folder.iterdir()
        note.write_text(json.dumps({**json.loads(note.read_text()), "interfaces": {"GLIBC": "2.2"}}))
        scans = obstacles(settings, engine, {session.name: (session, another)})
        assert "tool/own needs GLIBC" in scans.blocked[session.name], scans
        assert scans.unread == {}
        note.unlink()
