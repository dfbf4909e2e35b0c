"""GPUs: those of a machine, as its CDI specifications name them, and which of them a session is given. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from flows.core.documents import Mistakes, parse_plain, parse_plain_json
from flows.core.errors import RefitError

_EVERYTHING = "all"  # what the tools that write specifications call all devices of a machine together


@dataclass(frozen=True)
class Gpu:
    """A GPU: its name, e.g. `nvidia.com/gpu=0`, and its device nodes, inside a container → on the host."""

    name: str
    nodes: Mapping[str, str]

    @property
    def kind(self) -> str:
        """Its kind, e.g. `nvidia.com/gpu`."""
        return self.name.partition("=")[0]


@dataclass(frozen=True)
class Taken:
    """A GPU that somebody has.

    Attributes:
        gpu: its name.
        session: the session that has it; empty: a person holds it, and no session gets it.
        by: the person who took it.
        why: why a person holds it.
        since: since when.
        until: until when a person holds it; none: until it is released.
    """

    gpu: str
    session: str
    by: str
    why: str
    since: datetime
    until: datetime | None = None

    def __str__(self) -> str:
        who = f"session {self.session}" if self.session else f"{self.by}{f' ({self.why})' if self.why else ''}"
        until = f", until {self.until:%Y-%m-%d %H:%M} UTC" if self.until else ""
        return f"{self.gpu}: {who}, since {self.since:%Y-%m-%d %H:%M} UTC{until}"


class NoGpu(RefitError):
    """There are not as many free GPUs as a session wants."""

    def __init__(self, name: str, number: int, gpus: Sequence[Gpu], taken: Sequence[Taken]) -> None:
        holders = "\n".join(f"  {seat}" for seat in taken)
        sentence = f"This machine has {len(gpus)}; taken are:\n{holders}" if taken else f"This machine has {len(gpus)}."
        super().__init__(
            f"The session {name!r} waits for {'a GPU' if number == 1 else f'{number} GPUs'}.",
            why=sentence,
            hint="wait until a session that has one is stopped, or `refit gpu release` what nobody needs.",
        )


def read_spec(text: str, file: Path) -> tuple[Gpu, ...]:
    """The devices that a CDI specification names.

    Raises:
        RefitError: it is none.
    """
    try:
        spec: Any = (parse_plain_json if file.suffix == ".json" else parse_plain)(text, file)
        return tuple(Gpu(f"{spec['kind']}={device['name']}", _nodes(device)) for device in spec["devices"])
    except (TypeError, KeyError, AttributeError, Mistakes) as error:
        raise RefitError(
            f"{file} is no CDI specification.",
            why=f"{type(error).__name__}: {error}",
            hint="make it anew, e.g. by `nvidia-ctk cdi generate`, or remove it.",
        ) from None


def gpus_among(devices: Iterable[Gpu], kinds: Collection[str]) -> tuple[Gpu, ...]:
    """The GPUs among devices, each once: of these kinds, or of any kind that ends in `/gpu` if there are none."""
    gpus: dict[frozenset[str], Gpu] = {}
    for device in sorted(devices, key=lambda device: device.name):
        is_gpu = device.kind in kinds if kinds else device.kind.endswith("/gpu")
        if is_gpu and not device.name.endswith(f"={_EVERYTHING}"):
            # The same GPU may be there by its number and by its long name.
            gpus.setdefault(frozenset(device.nodes.values()) or frozenset({device.name}), device)
    return tuple(gpus.values())


def choose(
    gpus: Iterable[Gpu], taken: Iterable[Taken], number: int, share: int, had: Collection[str] = ()
) -> tuple[str, ...] | None:
    """The GPUs that a session gets: those that it had, if they are free, then those that fewest others have.

    Args:
        gpus: those of the machine.
        taken: GPUs of others.
        number: how many it wants.
        share: how many sessions may have the same one.
        had: GPUs that it had before.

    Returns:
        their names, in order; none: there are not enough.
    """
    free = _free(gpus, taken, share)
    best = sorted(free, key=lambda name: (name not in had, -free[name], name))[:number]
    return tuple(sorted(best)) if len(best) == number else None


def nodes_of(gpus: Iterable[Gpu], names: Collection[str]) -> dict[str, str]:
    """The device nodes of the GPUs with these names: inside a container → on the host."""
    return {inside: outside for gpu in gpus if gpu.name in names for inside, outside in gpu.nodes.items()}


def count_free(gpus: Iterable[Gpu], taken: Iterable[Taken], share: int) -> int:
    """How many times a session could be given a GPU."""
    return sum(_free(gpus, taken, share).values())


def free_from(taken: Iterable[Taken]) -> datetime | None:
    """When the first GPU is given back of which that is known; none: nobody knows."""
    return min((seat.until for seat in taken if seat.until), default=None)


def _free(gpus: Iterable[Gpu], taken: Iterable[Taken], share: int) -> dict[str, int]:
    """GPU → how many sessions more may have it, if any; none may have one that a person holds."""
    rest = list(taken)
    held = {seat.gpu for seat in rest if not seat.session}
    count = Counter(seat.gpu for seat in rest)
    seats = {gpu.name: share - count[gpu.name] for gpu in gpus if gpu.name not in held}
    return {name: free for name, free in seats.items() if free > 0}


def _nodes(device: Mapping[str, Any]) -> dict[str, str]:
    return dict(_node(node) for node in device["containerEdits"].get("deviceNodes") or ())


def _node(node: Mapping[str, str]) -> tuple[str, str]:
    return node["path"], node.get("hostPath") or node["path"]


class Gpus(Protocol):
    """The GPUs that sessions can have, and who has them; `shareable`: two containers of a session can have the same."""

    shareable: bool

    def gpus(self) -> tuple[Gpu, ...]:
        """All of them.

        Raises:
            RefitError: nobody can say which there are.
        """

    def free(self) -> tuple[int | None, datetime | None]:
        """How many GPUs sessions can be given now, none: nobody knows; and when the next is given back, if known."""

    def taken(self) -> tuple[Taken, ...]:
        """The GPUs that are on record as taken."""

    def take(
        self, session: str, number: int, had: Collection[str] = (), *, by: str, wait: float = 0.0
    ) -> tuple[str, ...]:
        """Let a session have GPUs until it gives them back; it keeps its others until `keep`.

        Args:
            session: its name.
            number: how many it wants.
            had: those that it had, if it has had any: it gets them again, if it can.
            by: the person who wants it.
            wait: seconds in which it may have to wait for others.

        Raises:
            NoGpu: there are not enough free ones; it has what it had.
        """

    def hold(self, gpu: str, *, by: str, why: str = "", until: datetime | None = None) -> None:
        """Keep a GPU from all sessions."""

    def keep(self, session: str, gpus: Collection[str]) -> tuple[str, ...]:
        """Let others have the GPUs of a session, all but these; returns which those are. It can be repeated."""

    def let_go(self, gpu: str) -> bool:
        """Let sessions have a GPU that a person holds; whether anybody did."""

    def nodes(self, names: Collection[str]) -> Mapping[str, str]:
        """The device nodes of GPUs, as far as they are known: inside a container → on the host."""

    def users(self, names: Collection[str], since: datetime) -> tuple[str, ...]:
        """Programs outside sessions that have begun to use one of these GPUs since then, in words."""
