"""The network of sessions: they reach neither each other nor this machine, except for what their profile names.

All sessions of a home whose profiles name the same have one network of Podman's, with a bridge of its own. A hook of
the OCI runtime loads the rules before a container's first process, at each start, whoever starts it: after a reboot,
or after somebody has emptied the tables of the firewall, they are there again. If they can't be, nothing starts.

- Each port of the bridge is isolated: no frame goes from one session to another.
- A table of nftables lets nothing in from the bridge to this machine, and nothing to the bridge from anywhere else.
  Connections that this machine begins (gateway, ssh, probes, published ports) are answered.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import tools

ANNOTATION = "io.refit.network"
# Where CNI keeps the addresses that it has given to containers of a network.
ADDRESSES = Path("/var/lib/cni/networks")
_POOL, _PREFIX = ipaddress.IPv4Network("10.128.0.0/10"), 22  # a thousand sessions each
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
# Bridges of other programs, whose containers are as little a session's business as the machine that they run on.
_OTHERS = ("podman*", "cni-podman*", "docker0")
_QUICK, _HOOK_SECONDS = 60.0, 30
_Network = ipaddress.IPv4Network


@dataclass(frozen=True)
class SessionNetwork:
    """A network of some sessions: `id` tells it apart from all others on this machine."""

    id: str
    ports: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name that Podman knows it by."""
        return f"refit-{self.id}"

    @property
    def bridge(self) -> str:
        """The name of its bridge: Linux allows 15 characters."""
        return f"rf-{self.id}"

    @property
    def table(self) -> str:
        """The name of its table of nftables."""
        return f"refit_{self.id}"


class SessionNetworks:
    """The networks of the sessions of a home."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._networks, self._hooks = tools.networks(settings), tools.hooks(settings)

    def network(self, ports: Iterable[int]) -> SessionNetwork:
        """The network of sessions that may reach these ports of this machine."""
        chosen = tuple(sorted(set(ports)))
        named = f"{self._settings.home} {' '.join(map(str, chosen))}".strip()
        return SessionNetwork(hashlib.sha256(named.encode()).hexdigest()[:12], chosen)

    def options(self, ports: Iterable[int]) -> list[str]:
        """The options for a container in the network for these ports, which is made if need be.

        Raises:
            RefitError: this machine can't have one.
        """
        if not self._settings.walls:
            return []
        network = self.network(ports)
        self._write(network)
        return [f"--network={network.name}", f"--annotation={ANNOTATION}={network.id}"]

    def addresses(self) -> tuple[Path, ...]:
        """The folders in which CNI may have left an address of a container that is gone."""
        return (ADDRESSES / "podman", *(ADDRESSES / network.name for network in self._known()))

    def remove(self) -> None:
        """Take away what the kernel and CNI know of these networks; the files go with the home's containers."""
        for network in self._known():
            command.run([_nft(), "delete", "table", "inet", network.table], root=True, accepted=(0, 1))
            command.run(["ip", "link", "delete", network.bridge], root=True, accepted=(0, 1))
            command.run(["rm", "-rf", "--", ADDRESSES / network.name], root=True)

    def _known(self) -> tuple[SessionNetwork, ...]:
        return tuple(SessionNetwork(file.stem) for file in sorted(self._hooks.glob("*.json")))

    def _write(self, network: SessionNetwork) -> None:
        """Writes the files of Podman, its hook and nftables; the hook last, which reads the others."""
        rules, script = self._hooks / f"{network.id}.nft", self._hooks / f"{network.id}.sh"
        texts = {
            rules: table(network, resolvers(file.read_text() for file in _RESOLVERS if file.exists())),
            script: raising(network, rules, _nft()),
            self._hooks / f"{network.id}.json": hook(network, script),
        }
        if all(_says(file, text) for file, text in texts.items()) and self._has_network(network):
            return
        with one_at_a_time(self._settings.folder() / "walls.lock"):
            _check(texts[rules])
            self._make_network(network)
            for file, text in texts.items():
                write_whole(file, text, private=True)

    def _has_network(self, network: SessionNetwork) -> bool:
        return any(bridge_of(json.loads(file.read_text())) == network.bridge for file in self._files(network))

    def _files(self, network: SessionNetwork) -> list[Path]:
        return [file for end in ("conflist", "json") if (file := self._networks / f"{network.name}.{end}").exists()]

    def _make_network(self, network: SessionNetwork) -> None:
        """A network whose bridge has a name that is known: Podman itself would call it by the next free number."""
        if not self._files(network):
            subnet = self._settings.session_subnet or free_subnet(network, _taken())
            called = ["network", "create", "--disable-dns", "--subnet", str(subnet), network.name]
            command.run([*tools.podman(self._settings), *called], root=True, limit=_QUICK)
        for file in self._files(network):
            write_whole(file, json.dumps(with_bridge(json.loads(file.read_text()), network.bridge), indent=2))


def _nft() -> str:
    if path := tools.program("nft"):
        return path
    raise RefitError(
        "The program 'nft' is not installed.",
        why="It keeps sessions from each other and from this machine.",
        hint="install the package nftables; `walls: false` in settings.yaml goes without.",
    )


def _check(rules: str) -> None:
    try:
        command.run([_nft(), "--check", "--file", "-"], root=True, stdin=rules, limit=_QUICK)
    except ProgramFailed as error:
        raise RefitError(
            "Sessions can't be kept from each other and from this machine.",
            why=f"nftables refuses: {error.tail.strip()[-300:]}",
            hint="`modprobe -a nf_tables nf_conntrack`, or a kernel with nftables; `walls: false` goes without.",
        ) from error


def _says(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8") == text
    except FileNotFoundError:
        return False


def _taken() -> list[_Network]:
    """The networks that this machine has a way to, beside the one to everywhere."""
    routes = json.loads(command.run(["ip", "-4", "-json", "route"], limit=_QUICK).stdout or "[]")
    return [ipaddress.IPv4Network(route["dst"], strict=False) for route in routes if route["dst"] != "default"]


def free_subnet(network: SessionNetwork, taken: Collection[_Network]) -> _Network:
    """A subnet that overlaps with none of these: two homes hardly begin their search at the same place. Pure.

    Raises:
        RefitError: there is none.
    """
    subnets = list(_POOL.subnets(new_prefix=_PREFIX))
    begin = int(network.id, 16) % len(subnets)
    for subnet in (*subnets[begin:], *subnets[:begin]):
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise RefitError(
        f"All of {_POOL} is in use.", hint="let `session_subnet` in settings.yaml name a subnet that is free."
    )


def bridge_of(network: Mapping[str, Any]) -> str:
    """The bridge that a network has, as a file of CNI or of netavark says. Pure."""
    plugins = [plugin for plugin in network.get("plugins", ()) if plugin.get("type") == "bridge"]
    return str(plugins[0]["bridge"] if plugins else network.get("network_interface", ""))


def with_bridge(network: Mapping[str, Any], bridge: str) -> Mapping[str, Any]:
    """A network of CNI or netavark with another bridge. Pure."""
    if "plugins" not in network:
        return {**network, "network_interface": bridge}
    plugins = network["plugins"]
    return {**network, "plugins": [{**p, "bridge": bridge} if p.get("type") == "bridge" else p for p in plugins]}


def resolvers(texts: Iterable[str]) -> tuple[str, ...]:
    """The name servers that files like resolv.conf name; those on loopback no container ever asks. Pure."""
    addresses: list[str] = []
    for words in (line.split() for text in texts for line in text.splitlines()):
        if len(words) > 1 and words[0] == "nameserver":
            try:
                address = ipaddress.ip_address(words[1].partition("%")[0])
            except ValueError:
                continue
            if not address.is_loopback:
                addresses.append(str(address))
    return tuple(dict.fromkeys(addresses))


def table(network: SessionNetwork, servers: Sequence[str]) -> str:
    """The rules of this network for nftables, which replace the earlier ones in one step. Pure.

    Args:
        network: the network.
        servers: the name servers that sessions ask: one may be this machine.
    """
    named = [f"{'ip6' if ':' in server else 'ip'} daddr {server}" for server in servers]
    accepted = [f"{which} meta l4proto {{ tcp, udp }} th dport 53 accept" for which in named]
    reached = [f"tcp dport {{ {', '.join(map(str, network.ports))} }} accept"] if network.ports else []
    others = [f'iifname "{network.bridge}" oifname "{other}" drop' for other in _OTHERS]
    answers = "ct state established,related accept"
    chains = {
        "input": [f'iifname != "{network.bridge}" accept', answers, *reached, *accepted, "drop"],
        "forward": [answers, *others, f'oifname "{network.bridge}" drop'],
    }
    written = "\n".join(
        f"  chain {name} {{\n    type filter hook {name} priority -10; policy accept;\n"
        + "".join(f"    {rule}\n" for rule in rules)
        + "  }"
        for name, rules in chains.items()
    )
    return (
        f"table inet {network.table}\ndelete table inet {network.table}\ntable inet {network.table} {{\n{written}\n}}\n"
    )


def raising(network: SessionNetwork, rules: Path, nft: str) -> str:
    """The program of the hook. Pure."""
    return f"""#!/bin/sh
# Refit: around a container of {network.name}, before its first process.
set -eu
exec </dev/null
{shlex.quote(nft)} -f {shlex.quote(str(rules))}
seen=
for port in /sys/class/net/{network.bridge}/brif/*/isolated; do
    [ -e "$port" ] || continue
    echo 1 >"$port" || [ ! -e "$port" ]  # it may have ended just now
    seen=1
done
[ -n "$seen" ]
"""


def hook(network: SessionNetwork, script: Path) -> str:
    """The hook as Podman reads it: which containers it is for, and when. Pure."""
    called = {"path": "/bin/sh", "args": ["sh", str(script)], "timeout": _HOOK_SECONDS}
    annotated = {f"^{ANNOTATION.replace('.', '[.]')}$": f"^{network.id}$"}
    return json.dumps(
        {"version": "1.0.0", "hook": called, "when": {"annotations": annotated}, "stages": ["createRuntime"]}, indent=2
    )
