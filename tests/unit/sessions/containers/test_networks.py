"""Podman's options, its hook and the rules of nftables for the network of sessions."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.services import doctor_containers, doctor_sessions
from flows.sessions.containers import networks
from flows.sessions.containers.networks import (
    SessionNetwork,
    SessionNetworks,
    bridge_of,
    free_subnet,
    resolvers,
    table,
    with_bridge,
)

NETWORK = SessionNetwork("0123456789ab", (5432, 8080))


def test_names_fit_what_the_kernel_takes_and_are_others_for_other_homes_and_ports(tmp_path: Path) -> None:
    here, there = (SessionNetworks(Settings(home=tmp_path / name)) for name in ("here", "there"))
    networks = [here.network(()), here.network((5432,)), here.network((8080, 5432)), there.network(())]
    assert len({network.bridge for network in networks}) == 4
    assert all(len(network.bridge) <= 15 for network in networks)
    assert here.network((5432, 8080, 8080)) == here.network((8080, 5432))


def test_where_no_walls_are_wanted_nothing_is_asked_for(settings: Settings) -> None:
    assert SessionNetworks(settings.model_copy(update={"walls": False})).options(()) == []


def test_a_subnet_overlaps_with_nothing_that_is_reached() -> None:
    first = free_subnet(NETWORK, [])
    assert first.prefixlen == 22 and free_subnet(NETWORK, []) == first
    second = free_subnet(NETWORK, [ipaddress.IPv4Network(f"{first.network_address + 512}/32")])
    assert not second.overlaps(first)
    with pytest.raises(RefitError, match="in use") as full:
        free_subnet(NETWORK, [ipaddress.IPv4Network("10.0.0.0/8")])
    assert "session_subnet" in full.value.hint


@pytest.mark.parametrize(
    "network",
    [
        {"name": "x", "plugins": [{"type": "bridge", "bridge": "cni-podman1", "ipam": {}}, {"type": "portmap"}]},
        {"name": "x", "driver": "bridge", "network_interface": "podman1", "dns_enabled": False},
    ],
    ids=["CNI", "netavark"],
)
def test_a_network_gets_a_bridge_with_a_name_that_is_known(network: dict[str, object]) -> None:
    made = with_bridge(network, NETWORK.bridge)
    assert bridge_of(made) == NETWORK.bridge != bridge_of(network)
    assert with_bridge(made, bridge_of(network)) == network


def test_the_resolvers_that_a_container_asks() -> None:
    text = (
        "# a comment\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver ::1\nsearch x\nnameserver fe80::1%eth0\n"
    )
    assert resolvers([text, "nameserver 192.0.2.1\nnameserver nonsense\nnameserver\n"]) == ("192.0.2.1", "fe80::1")


def test_the_rules_let_in_what_was_named_and_drop_the_rest_last() -> None:
    rules = table(NETWORK, ("192.0.2.1",))
    incoming, forwarded = (
        re.findall(r"chain \w+ {(.*?)}\n  ", rules + "\n  ", re.DOTALL)[0],
        rules.partition("forward")[2],
    )
    assert "tcp dport { 5432, 8080 } accept" in rules
    assert incoming
    assert f'oifname "{NETWORK.bridge}" drop' in forwarded
    assert "dport {" not in table(SessionNetwork("0" * 12), ())


def test_the_hook_is_for_containers_of_this_wall_alone() -> None:
    told = json.loads(networks.hook(NETWORK, Path("/x/raise.sh")))
    ((name, value),) = told["when"]["annotations"].items()
    assert re.fullmatch(name, networks.ANNOTATION) and re.fullmatch(value, NETWORK.id)
    assert not re.fullmatch(value, f"{NETWORK.id}0")


def test_doctor_says_whether_walls_can_be_raised(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = doctor_containers.walls(settings)
    assert finding.ok, finding.seen
    monkeypatch.setattr(doctor_containers, "table", lambda *_: "nonsense")
    (finding,) = doctor_containers.walls(settings)
    assert not finding.ok and "no session can start" in finding.seen and "walls: false" in finding.hint
    (finding,) = doctor_containers.walls(settings.model_copy(update={"walls": False}))
    assert finding.ok and "reach each other" in finding.seen


def test_doctor_says_what_has_no_limit() -> None:
    assert doctor_sessions.judge_bounds([], pool_has_limits=True).ok
    for judged in (doctor_sessions.judge_bounds(["ana"], True), doctor_sessions.judge_bounds([], False)):
        assert not judged.ok and judged.hint
    assert "ana" in doctor_sessions.judge_bounds(["ana"], True).seen
    for judge in (doctor_containers.judge_limits, doctor_containers.judge_call_filter):
        assert judge("").ok
        assert not judge("no cgroup").ok and "no cgroup" in judge("no cgroup").seen
