"""Packages of rpm: which versions dnf would install, and where they come from."""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.catalog.model import Base
from flows.core import fence
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.locks import mirror

FILE = "files/refit.repo"
_SECONDS = 600.0
_ROW = re.compile(r"^ (\S+) +(\S+) +(?:(\d+):)?(\S+) +\S+ +[\d.]+ *[kMG]? *$", re.MULTILINE)
_COUNT = re.compile(r"^Install +(\d+) Packages?$", re.MULTILINE)
_MISSING = re.compile(r"^(?:No match for argument|Error: Unable to find a match): (.+)$", re.MULTILINE)
_UNREACHED = re.compile(r"Failed to download metadata|Cannot download|Curl error|Status code: \d+")


def state(base: Base, settings: Settings) -> Mapping[str, str]:
    """The state of the mirror: repository → hash of its index of indexes.

    Raises:
        RefitError: the mirror doesn't answer.
    """
    urls = {name: f"{_here(part.baseurl)}repodata/repomd.xml" for name, part in base.config.repositories.items()}
    return mirror.state(urls, "<repomd", settings, lambda why: _mirror_error(base, why))


def simulate(base: Base, settings: Settings) -> tuple[str, ...]:
    """All packages that `base` brings into an empty system, as `name=epoch:version-release.arch`, sorted.

    Raises:
        RefitError: the mirror doesn't answer, or has not all of the packages.
    """
    if not base.packages:
        return ()
    with _empty_system() as folder:
        config = folder / "dnf.conf"
        options = {
            "module_platform_id": f"platform:{base.config.platform}",
            "cachedir": str(folder / "cache"),
            "proxy": settings.apt_proxy,
            "sslcacert": str(settings.ca_bundle or ""),
        }
        # Only lists are fetched here. Packages are checked against their keys where they are installed.
        config.write_text(_configuration(base, options, check=False))
        argv = [
            *("dnf", f"--config={config}", "--noplugins", "--assumeno"),
            *(f"--installroot={folder / 'root'}", f"--releasever={base.config.suite}", "install", *base.packages),
        ]
        # Debian's rpm keeps its database below HOME, here that of the empty system; and "no" is a failure for dnf.
        done = command.run(argv, root=True, env={"HOME": "/root"}, limit=_SECONDS, accepted=(0, 1))
    packages = planned(done.stdout)
    if packages is None:
        raise _explained(base, done.stdout + done.stderr)
    return packages


def planned(output: str) -> tuple[str, ...] | None:
    """The packages that dnf would install, as `name=epoch:version-release.arch`, sorted; none: not all are known. Pure.

    Dnf's table is for people, so it counts only as a whole: with as many rows as packages are announced.
    """
    rows, count = _ROW.findall(output), _COUNT.search(output)
    if count is None or len(rows) != int(count[1]):
        return None
    return tuple(sorted(f"{name}={epoch or 0}:{version}.{arch}" for name, arch, epoch, version in rows))


def files(base: Base) -> Mapping[str, bytes]:
    """The configuration of dnf in a build: each package that it installs is checked against the keys of the recipe."""
    return {"files/dnf.conf": _configuration(base, {"tsflags": "nodocs"}, check=True).encode()}


def _configuration(base: Base, options: Mapping[str, str], *, check: bool) -> str:
    """A configuration of dnf's, with the repositories of a base and nothing of the machine's own."""
    main = {"install_weak_deps": "False", "reposdir": "/dev/null", "varsdir": "/dev/null", **options}
    repositories = (
        f"\n[refit-{name}]\nname={base.display}: {name}\nbaseurl={part.baseurl}\n"
        + (f"gpgcheck=True\ngpgkey=file://{part.gpgkey}\n" if check else "gpgcheck=False\n")
        for name, part in base.config.repositories.items()
    )
    return "".join(["[main]\n", *(f"{name}={value}\n" for name, value in main.items() if value), *repositories])


@contextmanager
def _empty_system() -> Iterator[Path]:
    """A folder for the `with` block in which dnf may leave what it likes, as root."""
    with tempfile.TemporaryDirectory(prefix="refit-resolve-") as folder:
        try:
            yield Path(folder)
        finally:
            left = [path for path in Path(folder).iterdir() if path.is_dir()]
            with fence.lifted():
                command.run(["rm", "-rf", "--one-file-system", *left], root=True)


def _here(url: str) -> str:
    """An address with dnf's variable for the architecture filled in."""
    return url.replace("$basearch", platform.machine())


def _mirror_error(base: Base, why: str) -> RefitError:
    return RefitError(
        f"A mirror of {base.name!r} doesn't answer as it should.",
        why=why,
        hint=f"check `repositories` in {base.folder / 'base.yaml'}, and `apt_proxy` and `ca_bundle` in settings.yaml.",
    )


def _explained(base: Base, output: str) -> RefitError:
    if missing := dict.fromkeys(_MISSING.findall(output)):
        return mirror.missing(base, missing)
    if _UNREACHED.search(output):
        return _mirror_error(base, output.strip())
    return RefitError(f"The system packages of {base.name!r} can't be resolved.", why=output.strip())
