"""The socket at which sshd asks about keys: the parent of the program that asks has to be sshd's, too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import psutil
import pytest

from flows.jump import authorized_keys_command
from flows.jump.authorized_keys_socket import AuthorizedKeysServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user asks")
UID = 64_322
FINGERPRINT = f"SHA256:{'a' * 43}"
ASK = (f"setpriv --reuid={UID} --clear-groups", "/usr/bin/python3 -I -S")


@pytest.fixture
def place() -> Iterator[Path]:
    """The socket of a server that answers with the name of the process that it is asked for."""
    with TemporaryDirectory(prefix="refit-keys-") as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "ask.py").write_text(Path(authorized_keys_command.__file__).read_text())
        (folder / "ask.py").chmod(0o644)

        def answer(_: str, serving: psutil.Process) -> str:
            return f"{serving.name()}\n"

        with AuthorizedKeysServer(folder / "monitor", UID, answer) as server:
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield folder / "monitor"
            server.shutdown()
            thread.join()


def asked(place: Path, below: str) -> str:
    """The answer to a program of that user, which a shell calls: the user's, or root's."""
    become, python = ASK
    call = f"{python} {place.parent}/ask.py {place} {FINGERPRINT}"
    script = f"{become} sh -c '{call}; :'" if below == "user" else f"{become} {call}; :"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return said.stdout


def test_a_process_of_sshd_is_answered(place: Path) -> None:
    assert asked(place, "user") == "sh\n"


def test_where_the_process_has_gone_its_heir_is_not_taken_for_it(place: Path) -> None:
    """The heir is the first process of the namespace, which isn't sshd's: it would be ended as a connection."""
    assert asked(place, "root") == ""
