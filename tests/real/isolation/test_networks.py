"""The networks of sessions: connections that a person in one of them tries."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.sessions.containers.networks import SessionNetworks
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from tests.support.machine import RegistryServer, private_home
from tests.support.variants import JUPYTER
from tests.support.waiting import wait_until

PROFILE = ("jupyter-minimal-deb12-py311", "2026a")
# Says of each address that it is given whether it takes a connection.
TRIES = """
import socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print(address, "open")
    except ConnectionRefusedError:
        print(address, "refused")
    except OSError:
        print(address, "shut")
"""


def tries(sessions: Sessions, session: Session, *addresses: str) -> dict[str, str]:
    told = sessions.execute(session.name, ["python3", "-c", TRIES, *addresses])
    return dict(line.rsplit(" ", 1) for line in told.splitlines())


def wait_for(sessions: Sessions, session: Session, expected: dict[str, str]) -> None:
    """Let a session try until it is as expected: one that gets nothing done for two seconds takes all for shut."""
    wait_until(lambda: tries(sessions, session, *expected) == expected)


@pytest.fixture
def ben(sessions: Sessions, jupyter_image: str) -> Iterator[Session]:
    yield sessions.create("isolated-ben", *PROFILE, jupyter_image, JUPYTER)
    sessions.remove("isolated-ben", purge=True)


def own_address(sessions: Sessions, session: Session) -> str:
    script = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    return sessions.execute(session.name, ["python3", "-c", script]).strip()


def addresses_of_this_machine() -> list[str]:
    """Those that others can ask for."""
    told = json.loads(command.run(["ip", "-4", "-json", "address"], root=True).stdout)
    addresses = [each["local"] for link in told for each in link["addr_info"]]
    return [address for address in addresses if not address.startswith("127.")]


@pytest.fixture
def server() -> Iterator[int]:
    """A port of this machine at all of its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as listening:
        yield listening.getsockname()[1]


def test_sessions_reach_neither_each_other_nor_this_machine(
    sessions: Sessions, ana: Session, ben: Session, server: int
) -> None:
    others = f"{own_address(sessions, ben)}:8888"
    before = addresses_of_this_machine()
    result = tries(sessions, ana, others, *(f"{address}:{server}" for address in before))
    # Bridges of other homes come and go meanwhile, and an address that is gone is no longer this machine's.
    stayed = [address for address in before if address in addresses_of_this_machine()]
    gateway = sessions.execute(ana.name, ["sh", "-c", "grep host.containers.internal /etc/hosts | cut -f1"]).strip()
    assert gateway in stayed
    machine = [others, *(f"{address}:{server}" for address in stayed)]
    assert {address: result[address] for address in machine} == dict.fromkeys(machine, "shut")
    # Their people come in as before, and what they begin is answered.
    assert sessions.jupyter(ben).execute("6 * 7") == "42\n"
    wait_for(sessions, ben, {f"{own_address(sessions, ben)}:8888": "open"})


HEARS = """
import socket
heard = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
heard.bind(("::", 9999))
heard.settimeout(5)
try:
    print(heard.recv(9).decode())
except OSError:
    print("nothing")
"""
SAYS = """
import socket, sys, time
said = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for _ in range(30):
    said.sendto(b"hello", (sys.argv[1], 9999, 0, socket.if_nametoindex("eth0")))
    time.sleep(0.1)
"""


def test_neighbours_cant_be_reached_by_their_link_either(sessions: Sessions, ana: Session, ben: Session) -> None:
    link = "import socket; print(*(line.split()[0] for line in open('/proc/net/if_inet6') if 'eth0' in line))"
    if not (raw := sessions.execute(ben.name, ["python3", "-c", link]).strip()):
        pytest.skip("sessions have no IPv6 here")
    address = ":".join(raw[at : at + 4] for at in range(0, 32, 4))
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(sessions.execute, ben.name, ["python3", "-c", HEARS])
        sessions.execute(ana.name, ["python3", "-c", SAYS, address])
        assert heard.result() == "nothing\n"


def test_the_walls_are_there_again_after_the_firewall_was_emptied(
    sessions: Sessions, ben: Session, ana: Session, server: int, shared: Settings
) -> None:
    network = SessionNetworks(shared).network(())
    machine = f"{addresses_of_this_machine()[0]}:{server}"
    command.run(["nft", "delete", "table", "inet", network.table], root=True)
    for port in Path(f"/sys/class/net/{network.bridge}/brif").iterdir():
        (port / "isolated").write_text("0")
    there = f"{own_address(sessions, ana)}:8888"
    wait_for(sessions, ben, {machine: "open", there: "open"})  # so the test can fail
    sessions.stop(ben.name)
    sessions.start(ben.name)
    assert tries(sessions, ben, machine, there) == {machine: "shut", there: "shut"}


def test_a_profile_may_name_ports_of_this_machine(
    sessions: Sessions, ana: Session, jupyter_image: str, server: int
) -> None:
    wanting = JUPYTER.model_copy(update={"machine_ports": (server,)})
    machine = addresses_of_this_machine()[0]
    with socket.create_server(("0.0.0.0", 0)) as other:
        try:
            made = sessions.create("isolated-reaches", *PROFILE, jupyter_image, wanting)
            asked = [f"{machine}:{server}", f"{machine}:{other.getsockname()[1]}", f"{own_address(sessions, ana)}:8888"]
            wait_for(sessions, made, dict(zip(asked, ("open", "shut", "shut"), strict=True)))
        finally:
            sessions.remove("isolated-reaches", purge=True)


@pytest.mark.long
def test_sessions_of_another_home_are_out_of_reach_too(
    sessions: Sessions, ana: Session, jupyter_image: str, registry_server: RegistryServer, tmp_path: Path
) -> None:
    with private_home(tmp_path / "other", registry_server.port) as other:
        theirs = Sessions.open(other)
        made = theirs.create("isolated-other", *PROFILE, jupyter_image, JUPYTER)
        there = f"{own_address(theirs, made)}:8888"
        assert tries(sessions, ana, there) == {there: "shut"}
        here = f"{own_address(sessions, ana)}:8888"
        assert tries(theirs, made, here) == {here: "shut"}
        theirs.remove("isolated-other", purge=True)
        bridge = SessionNetworks(other).network(()).bridge
        assert Path("/sys/class/net", bridge).exists()
    assert not Path("/sys/class/net", bridge).exists()


def test_where_the_walls_cant_be_raised_nothing_starts(sessions: Sessions, ben: Session, shared: Settings) -> None:
    network = SessionNetworks(shared).network(())
    rules = tools.hooks(shared) / f"{network.id}.nft"
    sessions.stop(ben.name)
    good = rules.read_text()
    rules.write_text("nonsense\n")
    try:
        with pytest.raises(RefitError):
            sessions.engine.start(ben.container)
        assert sessions.running(sessions.store.session(ben.name)) is not Running.running
    finally:
        rules.write_text(good)
    sessions.start(ben.name)


def test_the_world_outside_stays_in_reach(sessions: Sessions, ana: Session) -> None:
    """By whatever of it this machine reaches: the way there leads over it, not to it."""
    routes = json.loads(command.run(["ip", "-4", "-json", "route", "show", "default"], root=True).stdout)
    if not routes:
        pytest.skip("this machine reaches nothing")
    asked = [f"{routes[0]['gateway']}:{port}" for port in (1, 53, 80, 443, 3128, 8080)]

    def is_in_reach() -> bool:
        here = {address for address in asked if _answers_here(address)}
        seen = tries(sessions, ana, *asked)
        return here <= {address for address, said in seen.items() if said in ("open", "refused")}

    wait_until(is_in_reach)


def _answers_here(address: str) -> bool:
    gateway, _, port = address.rpartition(":")
    try:
        socket.create_connection((gateway, int(port)), timeout=2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
