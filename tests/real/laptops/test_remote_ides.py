"""The ways in which VS Code, Zed and JetBrains use ssh, by OpenSSH's own programs: scripts by standard input, servers
that are copied over, forwarding by SOCKS, by port and by socket, and many commands over one connection.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from flows.jump import client_files
from tests.support.laptops import SECONDS, Laptop
from tests.support.office import Office
from tests.support.waiting import free_port, wait_until

# The server of an IDE: it serves its folder on a loopback port of its own choice, and says which.
SERVER = """
import functools, http.server, os, socketserver, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=os.path.expanduser("~/ide"))
if len(sys.argv) > 1:
    server = socketserver.ThreadingUnixStreamServer(sys.argv[1], handler)
    server.get_request = lambda: (socketserver.UnixStreamServer.get_request(server)[0], ("", 0))
    print(f"listeningOn=={sys.argv[1]}==", flush=True)
else:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(f"listeningOn=={server.server_address[1]}==", flush=True)
server.serve_forever()
"""
INSTALL = f"""
set -eu
echo "platform==$(uname -sm)=="
mkdir -p ~/ide && echo 'served in a session' >~/ide/version
cat >~/ide/server.py <<'END'
{SERVER}
END
exec python3 ~/ide/server.py
"""


@contextmanager
def opened(laptop: Laptop, *words: str, stdin: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program of ssh that stays, and that is told something by its standard input."""
    program = laptop.open(*words)
    try:
        assert program.stdin
        if stdin:
            program.stdin.write(stdin)
            program.stdin.close()
            program.stdin = None
        yield program
    finally:
        program.terminate()
        program.communicate()


def told_by(program: subprocess.Popen[str]) -> str:
    """The port or socket inside the session on which its server listens, as its output tells."""
    assert program.stdout and program.stderr
    for line in program.stdout:
        if told := re.search("listeningOn==([^=]+)==", line):
            return told[1]
    raise AssertionError(f"ended with {program.wait()}: {program.stderr.read()}")


def port_of(program: subprocess.Popen[str]) -> int:
    return int(told_by(program))


def through_socks(proxy: int, port: int, path: str) -> bytes:
    """The answer to a request that goes through a SOCKS 5 proxy to a loopback port behind it."""
    with socket.create_connection(("127.0.0.1", proxy), SECONDS) as connection:
        connection.sendall(b"\5\1\0")
        assert connection.recv(2) == b"\5\0"
        connection.sendall(b"\5\1\0\1" + bytes((127, 0, 0, 1)) + port.to_bytes(2, "big"))
        assert connection.recv(10)[1] == 0
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def free(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


def test_vs_code_a_script_by_standard_input_starts_a_server_that_is_reached_by_socks(ada: Laptop) -> None:
    proxy = free_port()
    with opened(ada, "-T", "-D", str(proxy), "-o", "ConnectTimeout=60", "ada.refit", "bash", stdin=INSTALL) as ssh:
        inside = port_of(ssh)
        with ThreadPoolExecutor(8) as several:  # an IDE has channels for its window, extensions and terminals
            answers = [*several.map(lambda _: through_socks(proxy, inside, "/version"), range(24))]
        assert all(answer.endswith(b"served in a session\n") for answer in answers)


def test_vs_code_and_jetbrains_reach_ports_and_sockets_of_the_session(ada: Laptop) -> None:
    with opened(ada, "-T", "ada.refit", "bash -s", stdin=INSTALL) as ssh:
        inside, outside, place = port_of(ssh), free_port(), ada.folder / "ide.sock"
        remote = "/tmp/ide.sock"
        with (
            opened(ada, "-T", "ada.refit", f"exec python3 ~/ide/server.py {remote}") as second,
            opened(ada, "-N", "-L", f"{outside}:127.0.0.1:{inside}", "-L", f"{place}:{remote}", "ada.refit"),
        ):
            # Each try before it listens is a line of ssh's, and nobody reads these: a full pipe stops ssh.
            assert told_by(second) == remote
            wait_until(lambda: not free(outside) and place.exists())
            with urlopen(f"http://127.0.0.1:{outside}/version", timeout=SECONDS) as answer:
                assert answer.read() == b"served in a session\n"
            asked = ("curl", "-sS", "--unix-socket", str(place), "http://session/version")
            wait_until(lambda: ada.call(*asked).stdout == "served in a session\n")


def test_jetbrains_a_server_is_uploaded_by_sftp_and_unpacked(ada: Laptop) -> None:
    (ada.folder / "server").mkdir()
    (ada.folder / "server" / "program").write_bytes(content := os.urandom(20_000_000))
    ada.call("tar", "-czf", "server.tar.gz", "server")
    batch = ada.folder / "batch"
    batch.write_text(
        "-mkdir .cache\n-mkdir .cache/JetBrains\nput server.tar.gz .cache/JetBrains/\nls -l .cache/JetBrains\n"
    )
    sent = ada.call("sftp", *ada.ssh.split()[1:], "-b", str(batch), "ada.refit")
    assert sent.returncode == 0 and "server.tar.gz" in sent.stdout, sent.stderr
    said = ada.run("ada", "cd .cache/JetBrains && tar -xzf server.tar.gz && sha256sum <server/program")
    assert said.stdout.split()[:1] == [hashlib.sha256(content).hexdigest()], said.stderr


@pytest.fixture
def master(ada: Laptop) -> Iterator[Path]:
    """The socket of one connection that many programs share, as Zed has it."""
    place = ada.folder / "master"
    shared = ("-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-o", f"ControlPath={place}")
    with opened(ada, "-N", *shared, "ada.refit"):
        wait_until(place.exists)
        yield place


def over(laptop: Laptop, master: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A program of ssh that goes over a connection that is open."""
    return laptop.call(*laptop.ssh.split(), "-o", "ControlMaster=no", "-o", f"ControlPath={master}", *words)


def test_zed_many_commands_and_forwards_share_one_connection(office: Office, ada: Laptop, master: Path) -> None:
    with ThreadPoolExecutor(6) as several:
        said = [*several.map(lambda n: over(ada, master, "ada.refit", f"sh -c 'echo {n}; uname -sm'"), range(30))]
    assert [one.stdout.splitlines()[0] for one in said] == [str(number) for number in range(30)], said[0].stderr
    with opened(ada, "-T", "ada.refit", "bash", stdin=INSTALL) as ssh:
        inside, outside = port_of(ssh), free_port()
        forward = f"{outside}:127.0.0.1:{inside}"
        assert over(ada, master, "-O", "forward", "-L", forward, "ada.refit").returncode == 0
        with urlopen(f"http://127.0.0.1:{outside}/version", timeout=SECONDS) as answer:
            assert answer.read() == b"served in a session\n"
        assert over(ada, master, "-O", "cancel", "-L", forward, "ada.refit").returncode == 0
    assert over(ada, master, "-O", "exit", "ada.refit").returncode == 0


def test_zed_a_proxy_on_standard_input_and_output_changes_no_byte(ada: Laptop, master: Path) -> None:
    content = os.urandom(5_000_000)
    call = [*ada.ssh.split(), "-o", f"ControlPath={master}", "ada.refit", "exec cat"]
    said = subprocess.run(call, input=content, capture_output=True, timeout=SECONDS, env=ada.environment, check=True)
    assert said.stdout == content


def test_the_agent_of_the_laptop_is_in_a_session_by_choice_alone(office: Office, ada: Laptop) -> None:
    place = ada.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        wait_until(place.exists)
        subprocess.run(["ssh-add", "-q", ada.key], env={**ada.environment, "SSH_AUTH_SOCK": str(place)}, check=True)
        with_agent = ("-o", f"IdentityAgent={place}")
        there = ("ada.refit", 'test -S "${SSH_AUTH_SOCK:-}" && echo there || echo none')
        assert ada.call(*ada.ssh.split(), *with_agent, *there).stdout == "none\n"
        files = client_files.way(office.settings, "ada").files(forward_agent=True)
        client_files.write(files, ada.folder / ".ssh")
        assert ada.call(*ada.ssh.split(), *with_agent, *there).stdout == "there\n"
    finally:
        agent.terminate()
        agent.wait(SECONDS)
