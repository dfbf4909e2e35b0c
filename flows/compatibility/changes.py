"""Changes made by hand in a session's container, outside its home: a move leaves it behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import quote

from flows.compatibility.scan import in_container, of_image
from flows.core.settings import Settings
from flows.publishing import image_comparison
from flows.sessions.engine import Engine
from flows.sessions.inside import folder as inside
from flows.sessions.model import Session

LOOK_SECONDS = 300.0
MOST_LISTED = 16 << 20  # bytes: the names of 200,000 files
# Paths that a container writes by itself, and those of package records: packages are told by name.
_OWN = (
    *("/dev", "/proc", "/run", "/sys", "/tmp", "/var/cache", "/var/log", "/var/tmp"),
    *("/var/lib/apt", "/var/lib/dpkg", "/var/lib/dnf", "/var/lib/rpm", "/usr/lib/sysimage"),
)
_OF_THE_ENGINE = frozenset(
    {"/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf", "/etc/passwd", "/etc/group"}
)
_PARTS = frozenset({"__pycache__", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class HandMade:
    """Differences between a session's container and its image.

    Attributes:
        session: its name.
        system: packages of the operating system.
        python: Python packages, those in the home left out.
        files: other files and folders that were added or changed.
        manager: the package manager of the operating system, `apt-get` or `dnf`.
        recipe: commands that make the same packages anew, to be run as root in the next container.
        files_known: whether the engine can tell which other files there are.
    """

    session: str
    system: image_comparison.Changes
    python: image_comparison.Changes
    files: tuple[str, ...]
    manager: str
    recipe: tuple[str, ...]
    files_known: bool = True

    def __bool__(self) -> bool:
        return bool(self.recipe or self.files)


def hand_made(settings: Settings, engine: Engine, session: Session) -> HandMade:
    """Compare the container of a session that runs with the image that it was made from.

    Raises:
        RefitError: the container doesn't run, or can't be looked at.
    """
    image, now = of_image(settings, session.image), in_container(engine, session)
    system = image_comparison.changes(image.system, now.system)
    python = image_comparison.changes(image.distributions, now.distributions)
    files: tuple[str, ...] = ()
    if (different := engine.changed_files(session.container)) is not None:
        of_packages = _brought(engine, session, now.manager, (*system.added, *system.changed))
        # The engine makes folders for volumes, and a file for the command.
        mounted = {*(volume.path for volume in session.volumes), inside.COMMAND_INSIDE}
        files = described(different, {*of_packages, *mounted}, now.home)
    recipe = (*of_system(system, now.manager), *of_python(python))
    return HandMade(session.name, system, python, files, now.manager, recipe, different is not None)


def of_system(system: image_comparison.Changes, manager: str) -> tuple[str, ...]:
    """The commands that make the same changes to packages of the operating system again, as root. Pure."""
    if manager == "dnf":
        rpms = [f"{name}-{version}" for name, version in _there(system).items()]
        install = "dnf install --assumeyes --setopt=install_weak_deps=False"
        return _calls((install, rpms), ("dnf remove --assumeyes", [*system.removed]))
    packages = [f"{name}={version}" for name, version in _there(system).items()]
    install = "apt-get update && apt-get install --yes --no-install-recommends --allow-downgrades"
    return _calls((install, packages), ("apt-get remove --yes", [*system.removed]))


def of_python(python: image_comparison.Changes) -> tuple[str, ...]:
    """The commands that make the same changes to Python packages again. Pure."""
    packages = [f"{name}=={version}" for name, version in _there(python).items()]
    return _calls(("python3 -m pip install", packages), ("python3 -m pip uninstall --yes", [*python.removed]))


def _calls(*calls: tuple[str, Collection[str]]) -> tuple[str, ...]:
    return tuple(f"{call} {' '.join(map(quote, words))}" for call, words in calls if words)


def described(different: Mapping[str, Collection[str]], of_packages: Collection[str], home: str) -> tuple[str, ...]:
    """The paths of `podman diff` that a person has to know of. Pure.

    Folders that changed only because of something inside are left out, and what belongs to packages.
    """
    paths = {path for kind in ("added", "changed", "deleted") for path in different.get(kind) or ()}
    holders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return tuple(sorted(p for p in paths - holders - set(of_packages) if not _own(PurePosixPath(p), home)))


def _own(path: PurePosixPath, home: str) -> bool:
    below = any(path.is_relative_to(folder) for folder in (*_OWN, home))
    return below or str(path) in _OF_THE_ENGINE or not _PARTS.isdisjoint(path.parts)


def _there(changes: image_comparison.Changes) -> dict[str, str]:
    return {**changes.added, **{name: after for name, (_, after) in changes.changed.items()}}


def _brought(engine: Engine, session: Session, manager: str, packages: Iterable[str]) -> frozenset[str]:
    """The files that packages of the operating system brought along."""
    if not (names := sorted(packages)):
        return frozenset()
    ask = ["rpm", "--query", "--list"] if manager == "dnf" else ["dpkg-query", "--listfiles"]
    listed = engine.execute(session.container, [*ask, *names], limit=LOOK_SECONDS, most=MOST_LISTED)
    # Debian's /bin is a link to /usr/bin, and packages name either.
    both = ((line, f"/usr{line}") for line in listed.splitlines())
    return frozenset(path for pair in both for path in pair)
