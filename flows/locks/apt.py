"""Debian's packages: which versions apt would install, and where they come from."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.catalog.model import Base
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.programs import command
from flows.core.settings import Settings
from flows.locks import mirror

with lazily(globals()):
    from debian.deb822 import Deb822  # with charset_normalizer

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PUBLIC = "http://deb.debian.org"
_PLANNED = re.compile(r"^Inst (\S+)(?: \[[^]]*\])? \((\S+) ", re.MULTILINE)
_MISSING = re.compile(r"Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate")


def simulate(base: Base, settings: Settings) -> tuple[str, ...]:
    """All packages that bootstrapping `base` installs, as `name=version`, sorted.

    Raises:
        RefitError: the mirror doesn't answer, or has not all of the packages.
    """
    with tempfile.TemporaryDirectory(prefix="refit-resolve-") as folder, trust(settings) as trusted:
        lines = Path(folder) / "sources.list"
        lines.write_text(sources(base.config.suite, settings.debian_mirror))
        try:
            done = command.run(simulation(base, str(lines), trusted), env=proxy(settings), limit=300)
        except command.ProgramFailed as error:
            raise _explained(base, error) from None
    return planned(done.stdout + done.stderr)


def simulation(base: Base, sources: str, trusted: Iterable[str]) -> list[str]:
    """The command that tells what bootstrapping `base` installs, from the mirrors in the file `sources`.

    It installs nothing, so it needs no rights: a Refit in a Pod has none. Where it isn't root, nothing is mounted.
    """
    mode = "root" if os.geteuid() == 0 else "chrootless"
    included = [f"--include={','.join(base.packages)}"] if base.packages else []
    options = [f"--mode={mode}", "--variant=minbase", "--simulate", "--verbose", *included, *trusted]
    return ["mmdebstrap", *options, base.config.suite, "-", sources]


def sources(suite: str, mirror: str) -> str:
    """apt's one-line sources of a Debian release, its updates and its security updates."""
    return "".join(f"deb [signed-by={KEYRING}] {root} {part} main\n" for root, part in _suites(suite, mirror))


def files(base: Base) -> Mapping[str, bytes]:
    """The sources of a base's image, which are public whatever mirror it was made from."""
    parts: dict[str, list[str]] = {}
    for root, part in _suites(base.config.suite, PUBLIC):
        parts.setdefault(root, []).append(part)
    stanzas = (
        Deb822({"Types": "deb", "URIs": root, "Suites": " ".join(suites), "Components": "main", "Signed-By": KEYRING})
        for root, suites in parts.items()
    )
    return {"files/debian.sources": b"\n".join(map(bytes, stanzas))}


def proxy(settings: Settings) -> Mapping[str, str]:
    """The environment in which apt goes through the proxy of the settings."""
    return dict.fromkeys(("http_proxy", "https_proxy"), settings.apt_proxy) if settings.apt_proxy else {}


@contextmanager
def trust(settings: Settings) -> Iterator[list[str]]:
    """The options with which mmdebstrap trusts the authorities of the settings inside the `with` block."""
    if not settings.ca_bundle:
        yield []
        return
    # apt downloads as a user of its own, who may read neither Refit's home nor a private `ca_bundle`.
    with tempfile.TemporaryDirectory(prefix="refit-authorities-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        readable = Path(folder) / "ca.pem"
        readable.write_bytes(settings.ca_bundle.read_bytes())
        readable.chmod(0o644)
        # mmdebstrap leaves the options of apt in the image, where the next machine would stumble over them.
        forget = 'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap'
        yield [f'--aptopt=Acquire::https::CaInfo "{readable}"', f"--customize-hook={forget}"]


def releases(suite: str, mirror: str) -> tuple[str, ...]:
    """The addresses of the signed indexes of a Debian release, its updates and its security updates."""
    return tuple(f"{root}/dists/{part}/InRelease" for root, part in _suites(suite, mirror))


def planned(output: str) -> tuple[str, ...]:
    """The packages that a simulation of apt would install, as `name=version`, sorted. Pure."""
    return tuple(sorted({f"{name}={version}" for name, version in _PLANNED.findall(output)}))


def state(base: Base, settings: Settings) -> Mapping[str, str]:
    """The state of the mirror: suite → hash of its signed index of indexes.

    Raises:
        RefitError: the mirror doesn't answer.
    """
    urls = {part: f"{root}/dists/{part}/InRelease" for root, part in _suites(base.config.suite, settings.debian_mirror)}
    return mirror.state(urls, "\nSHA256:", settings, mirror_error)


def _suites(suite: str, mirror: str) -> Iterable[tuple[str, str]]:
    root = mirror.rstrip("/")
    return (
        (f"{root}/debian", suite),
        (f"{root}/debian", f"{suite}-updates"),
        (f"{root}/debian-security", f"{suite}-security"),
    )


def mirror_error(why: str) -> RefitError:
    """The error for a mirror that can't be used."""
    return RefitError(
        "The Debian mirror doesn't answer as it should.",
        why=why,
        hint="check `debian_mirror`, `apt_proxy` and `ca_bundle` in settings.yaml (REFIT_DEBIAN_MIRROR, …).",
    )


def _explained(base: Base, error: command.ProgramFailed) -> RefitError:
    if missing := [first or second for first, second in _MISSING.findall(error.tail)]:
        return mirror.missing(base, missing)
    if re.search(r"Failed to fetch|Could not (connect|resolve)|Connection (timed out|failed)|certificate", error.tail):
        return mirror_error(error.tail)
    return RefitError(f"The system packages of {base.name!r} can't be resolved.", why=error.why, hint=error.hint)
