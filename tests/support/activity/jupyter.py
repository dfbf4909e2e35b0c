"""Kernels, scripts, terminals and documents of JupyterLab that are at work."""

from __future__ import annotations

from flows.sessions.activity.verdict import PROBE
from tests.support.activity.room import (
    BUSY,
    Row,
    open_jupyter_terminal,
    type_a_text,
    type_without_saving,
)

ROWS = (
    Row(
        "a kernel that computes silently",
        BUSY,
        lambda room: room.cell("import time; time.sleep(900)", ended=False),
        because="is busy",
    ),
    Row(
        "a kernel that asks its user something",
        BUSY,
        lambda room: room.cell("input('?')", stdin=True),
        because="is busy",
    ),
    Row(
        "a thread that outlives its cell",
        BUSY,
        lambda room: room.cell("import threading\ndef f():\n  while 1: pass\nthreading.Thread(target=f).start()"),
        because="CPU",
    ),
    Row(
        "a program that outlives its cell",
        BUSY,
        lambda room: room.cell("import subprocess; subprocess.Popen(['sleep', '900'])"),
        because="sleep 900",
    ),
    Row(
        "a process of Python that outlives its cell",
        BUSY,
        lambda room: room.cell("import multiprocessing as m, time; m.Process(target=time.sleep, args=(900,)).start()"),
        because="ipykernel_launcher",
    ),
    Row(
        "a thread of a kernel that writes something now and then",
        BUSY,
        lambda room: room.cell(
            """
            import threading, time
            def write():
                while True:
                    open("checkpoint", "w").write("x")
                    time.sleep(30)
            threading.Thread(target=write, daemon=True).start()
            """
        ),
        because="a kernel with a thread that works",
    ),
    Row(
        "a thread of a kernel that waits for another program",
        BUSY,
        lambda room: room.cell(
            """
            import subprocess, threading
            threading.Thread(target=subprocess.run, args=(["setsid", "--fork", "--wait", "sleep", "900"],)).start()
            """
        ),
        because="sleep 900",
    ),
    Row(
        "a copy of a kernel that init has adopted",
        BUSY,
        lambda room: room.cell(
            """
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(900)
                os._exit(0)
            os.wait()
            """
        ),
        because="runs: /opt/app-root/bin/python3 -m ipykernel_launcher",
    ),
    Row(
        "a script that was given to `session exec`",
        BUSY,
        lambda room: room.feed("python3", "-I", "-", text="import time; open('there', 'w'); time.sleep(900)"),
        "test -e there",
        "runs: python3 -I -",
        quick=True,
    ),
    Row(
        "a program that looks like Refit's own look",
        BUSY,
        lambda room: room.feed(*PROBE, text="import time; open('there', 'w'); time.sleep(900)\n"),
        "test -e there",
        "runs: python3 -I -c",
        quick=True,
    ),
    Row("a kernel that was used a minute ago", BUSY, lambda room: room.cell("1"), because="was used", quiet=900),
    Row(
        "sleep in a terminal of JupyterLab that was closed",
        BUSY,
        lambda room: open_jupyter_terminal(room, "sleep 900"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
    ),
    Row(
        "somebody types into a text file of JupyterLab",
        BUSY,
        type_a_text,
        "grep -q more text && grep -q text .jupyter/lab/workspaces/*",
        "a document was saved",
        quiet=900,
    ),
    Row(
        "somebody types in JupyterLab and saves nothing",
        BUSY,
        type_without_saving,
        "test -e .local/share/jupyter/heartbeat && ! grep -q more text",
        "the IDE was used",
        quiet=900,
    ),
    Row("a server that hangs", BUSY, "pkill -STOP -x launch-jupyter", because="not known: Jupyter", jupyter=True),
)
