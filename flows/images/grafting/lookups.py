"""Lookups of a stage's instructions in the image below: where their results differ, they would give another layer.
Pure.

COPY goes through links to its target, WORKDIR makes only folders that aren't there, owners may be names, and a program
has a user, a folder, variables, volumes and a PATH. All of it is read as buildah 1.28 does. Other files that a program
reads aren't seen: a closed stage's programs read no more than its `abi` names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from flows.images.grafting.configuration import Config, Instruction, State, copied, has_layer, instructions
from flows.images.grafting.graft_fit import FOLDER, SYMLINK, Entry

Find = Callable[[str], Entry | None]
"""Finds the entry at a path of the image below, links not followed; none: there is none."""

_ROOT = frozenset({"", "0", "root", "0:0", "root:root"})
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_WORD = re.compile(r"[\w.+-]+", re.ASCII)
_COPY_OPTIONS = frozenset({"chmod", "chown"})
_MOST_LINKS = 40  # as the kernel follows


def looked_up(text: str, files: Iterable[str], below: Config, find: Find) -> Mapping[str, object]:
    """The lookups of a stage's instructions: instruction → result.

    Args:
        text: the stage's instructions, without FROM.
        files: the paths of its files, below the context.
        below: the configuration of the image below.
        find: the contents of that image.

    Raises:
        ValueError: the lookups of an instruction can't be told.
    """
    if not has_layer(text):
        return {}
    return dict(_Lookups(State.on(below.get("config") or {}), tuple(files), find).all(instructions(text)))


class _Lookups:
    def __init__(self, state: State, files: tuple[str, ...], find: Find) -> None:
        self._state, self._files, self._find = state, files, find

    def all(self, steps: Iterable[Instruction]) -> Iterator[tuple[str, object]]:
        ran = False
        for number, step in enumerate(steps):
            if ran and step.name in ("COPY", "WORKDIR"):
                raise ValueError(f"a program before it may have made a link on its way: {step.written!r}")
            ran = ran or step.name == "RUN"
            before = self._folder()
            step.apply(self._state)
            match step.name:
                case "COPY":
                    yield f"{number} COPY", self._copy(step)
                case "WORKDIR":
                    yield f"{number} WORKDIR", self._workdir(before)
                case "RUN":
                    yield f"{number} RUN", self._run(step)

    def _folder(self) -> str:
        return posixpath.join("/", self._state.inner.get("WorkingDir") or "/")

    def _copy(self, step: Instruction) -> object:
        options, words = copied(step)
        *sources, target = (self._state.expanded(word) for word in words)
        given = {name: self._state.expanded(value) for name, value in options}
        if unknown := given.keys() - _COPY_OPTIONS:
            raise ValueError(f"COPY --{min(unknown)} can't be recomputed: {step.written!r}")
        # Without its `/` at the end a target may be a file.
        place = posixpath.join(self._folder(), target)
        owner = self._owner(given["chown"]) if "chown" in given else ""
        return [sources, place, self._led(place), self._detours(place), given.get("chmod", ""), owner]

    def _workdir(self, before: str) -> object:
        """The folder, how much of it is there, and whose it is if it has to be made."""
        return [self._led(before), self._led(self._folder()), self._owner(self._state.inner.get("User") or "")]

    def _run(self, step: Instruction) -> object:
        inner = self._state.inner
        variables = self._state.variables
        folders = [folder for folder in variables.get("PATH", "").split(":") if folder.startswith("/")]
        return {
            "user": self._owner(inner.get("User") or ""),
            "folder": self._led(self._folder()),
            "variables": dict(sorted(variables.items())),
            "volumes": sorted(inner.get("Volumes") or ()),
            "programs": self._programs(step.rest, folders),
        }

    def _programs(self, text: str, folders: Iterable[str]) -> Mapping[str, str]:
        """Word of a text → the first of the folders in which there is a program of that name."""
        programs: dict[str, str] = {}
        words = sorted(set(_WORD.findall(text)))
        for folder in folders:
            place = self._led(folder)[0].strip("/")
            programs = {**{word: folder for word in words if self._find(f"{place}/{word}")}, **programs}
        return programs

    def _owner(self, owner: str) -> object:
        """The owner of a file: a number itself, a name by the accounts of the image below."""
        if owner in _ROOT:
            return "0:0"
        if re.fullmatch(r"\d+:\d+", owner, re.ASCII):
            return owner
        accounts = (self._find(self._led(file)[0].strip("/")) for file in _ACCOUNTS)
        return [owner, *(entry and entry.content for entry in accounts)]

    def _detours(self, target: str) -> list[object]:
        """Where links lead what is copied below a target, and maybe more: a file may arrive by any end of its path."""
        names = {file.split("/", cut)[-1] for file in self._files for cut in range(file.count("/") + 1)}
        places = sorted(posixpath.join(target, name) for name in names)
        led = ((place, self._led(place)) for place in places)
        return [
            [place, *detour] for place, detour in led if detour[0] != posixpath.normpath(place) or detour[1] == FOLDER
        ]

    def _led(self, path: str) -> tuple[str, str, int]:
        """Where a path leads through links, what stands there (empty: nothing), and how many of its folders exist."""
        todo, at, links, there = _parts(path), "", 0, 0
        missing = False
        while todo:
            part = todo.pop()
            if part == "..":
                at = posixpath.dirname(at)
                continue
            here = posixpath.join(at, part)
            entry = None if missing else self._find(here)
            if entry and entry.kind == SYMLINK:
                if (links := links + 1) > _MOST_LINKS:
                    raise ValueError(f"links that lead round in circles: {path!r}")
                at = "" if entry.content.startswith("/") else at
                todo += _parts(entry.content)
                continue
            missing, at = missing or entry is None, here
            there += not missing
            kind = entry.kind if entry else ""
        return f"/{at}", "" if missing else kind if at else FOLDER, there


def _parts(path: str) -> list[str]:
    """The parts of a path, the last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
