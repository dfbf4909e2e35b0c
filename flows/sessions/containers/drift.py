"""Changes by hand to a container: Podman's present record of it, compared with the options it was made with. Pure.

It is compared with the options that it was made with, not with those that this Refit would give: these may be others
after an upgrade. That they were Refit's own says a digest on the container.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

LABEL = "io.refit.made-with"
# Values that `podman update` sets, and how they follow from the option that set it before.
_LIMITS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "Memory": ("memory", lambda text: float(text.removesuffix("b"))),
    "NanoCpus": ("cpus", lambda text: float(text) * 1e9),
    "CpuQuota": ("cpus", lambda text: float(text) * 1e5),
    "PidsLimit": ("pids-limit", float),
}

Told = Mapping[str, Any]


def marked(options: Sequence[str]) -> list[str]:
    """The options of a container, with the label that says that they are Refit's."""
    return [*options, f"--label={LABEL}={_digest(options)}"]


def changes(inspected: Told) -> tuple[str, ...]:
    """The changes since Refit made it, each in words.

    Args:
        inspected: the output of `podman container inspect`.
    """
    called = inspected["Config"].get("CreateCommand") or []
    written = (inspected["Config"].get("Labels") or {}).get(LABEL)
    if written and _digest(_own(called)) != written:
        return ("it was made anew, with other options than Refit's",)
    made = _Made(called)
    return tuple(change for look in _LOOKS for change in look(inspected, made))


class _Made:
    """The options that a container was made with."""

    def __init__(self, called: Sequence[str]) -> None:
        self._pairs = [word[2:].partition("=")[::2] for word in called if word.startswith("--")]

    def all(self, name: str) -> list[str]:
        return [value for option, value in self._pairs if option == name]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")


def _name(inspected: Told, made: _Made) -> Iterator[str]:
    if made.one("name") not in ("", inspected["Name"]):
        yield f"it was renamed to {inspected['Name']}"


def _written(inspected: Told, made: _Made) -> Iterator[str]:
    labels = {f"{name}={value}" for name, value in (inspected["Config"].get("Labels") or {}).items()}
    variables = set(inspected["Config"].get("Env") or ())
    for what, option, image_values in (("variable", "env", variables), ("label", "label", labels)):
        others = (value.partition("=")[0] for value in made.all(option) if value not in image_values)
        yield from (f"the {what} {name} is another" for name in others)


def _mounts(inspected: Told, made: _Made) -> Iterator[str]:
    mounted = [(mount["Source"], mount["Destination"]) for mount in inspected.get("Mounts") or ()]
    mounts = [_mount(value) for value in made.all("mount")]
    yield from (f"{target} is no longer mounted" for source, target in mounts if (source, target) not in mounted)
    yield from (f"{source} was mounted at {target}" for source, target in mounted if (source, target) not in mounts)


def _network(inspected: Told, made: _Made) -> Iterator[str]:
    requested, published = set(made.all("publish")), set(_published(inspected["HostConfig"].get("PortBindings") or {}))
    yield from (f"the port {port} is no longer published" for port in sorted(requested - published))
    yield from (f"the port {port} was published" for port in sorted(published - requested))
    networks = inspected["NetworkSettings"].get("Networks") or {}
    if len(networks) > 1:
        yield f"it was connected with other networks: {', '.join(sorted(networks))}"


def _limits(inspected: Told, made: _Made) -> Iterator[str]:
    for name, (option, meaning) in _LIMITS.items():
        if (now := inspected["HostConfig"].get(name) or 0) > 0 and now != round(meaning(made.one(option) or "0")):
            yield f"its limit {name} is {now}"


_LOOKS = (_name, _written, _mounts, _network, _limits)


def _own(called: Sequence[str]) -> list[str]:
    """The options that Refit gave: from the name, which is the first, to the image, without the label."""
    first = next((place for place, word in enumerate(called) if word.startswith("--name=")), len(called))
    return [word for word in called[first:-1] if not word.startswith(f"--label={LABEL}=")]


def _published(bindings: Told) -> Iterator[str]:
    for port, places in bindings.items():
        yield from (f"{place['HostIp']}:{place['HostPort']}:{port.partition('/')[0]}" for place in places or ())


def _mount(option: str) -> tuple[str, str]:
    parts = dict(part.partition("=")[::2] for part in option.split(","))
    return parts.get("src", ""), parts.get("dst", "")


def _digest(options: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(options)).encode()).hexdigest()
