"""The keeper of the sshd says where connections lead, whatever becomes of the processes that it is asked about."""

from __future__ import annotations

import subprocess
import sys

# An ordinary user can't look at the files of a process that has ended, or of another user's.
ASK = """
import os, socket
import psutil
from flows.jump.sshd_keeper import forwardings

listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
connection = socket.create_connection(("127.0.0.1", port))
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
ended = os.fork()
if ended == 0:
    os._exit(0)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
for pid in (ended, 1):
    try:
        print(psutil.Process(pid).net_connections("tcp"))
    except psutil.Error as error:
        print(type(error).__name__)
own = connection.getsockname()
print([tuple(end) for end in forwardings([ended, 1, 2 ** 22, os.getpid()], port)] == [(*own, "127.0.0.1")])
"""


def test_a_process_that_has_ended_and_anothers_lead_nowhere_and_the_others_are_still_told() -> None:
    told = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout.splitlines() == ["AccessDenied", "AccessDenied", "True"], told.stderr
