"""The parts of a home that stop working on another image, and how to mend it. Pure: facts go in, findings come out.

Only what the move makes worse counts: a fault that the old image has as well is said, and keeps nobody.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, islice, takewhile
from shlex import quote

from packaging.utils import canonicalize_name

from flows.compatibility.elf import numbered
from flows.compatibility.facts import Group, Home, Image, Kind, Starter
from flows.core.formatting import clipped, on_a_line, some

_CUDA = re.compile(r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|nccl|nvrtc)\.so\.\d")
_PYTHON_LIBRARY = re.compile(r"libpython3")
_WORD, _VERSION = re.compile(r"\w*"), re.compile(r"\d[\w.]*")
MOST_NAMED = 6
MOST_FINDINGS = 1_000
MOST_TEXT = 1 << 20  # characters of the findings of a session
_SHOWN = 2_000  # characters of a single finding


class Verdict(StrEnum):
    """Whether a home and an image go together, from best to worst.

    `rebuild`: something has to be made anew, and the finding says how. `blocked`: nobody but its owner knows how;
    without their consent the session isn't moved.
    """

    ok = "ok"
    rebuild = "rebuild"
    blocked = "blocked"


@dataclass(frozen=True)
class _Lookup:
    """Facts about a home as they are looked up: a liar tells of a hundred thousand of each.

    Attributes:
        libraries: names of the shared libraries in it.
        environments: folders of its environments, sorted, each with a slash at its end and none inside another.
        first: folders that its startup files put into PATH.
    """

    libraries: frozenset[str]
    environments: Sequence[str]
    first: frozenset[str]


@dataclass(frozen=True)
class Finding:
    """One thing in a home that the move concerns: where, what, and the commands that mend it, to be run afterwards."""

    verdict: Verdict
    path: str
    what: str
    recipe: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many characters it has."""
        return len(self.path) + len(self.what) + sum(map(len, self.recipe))


def judge(home: Home, old: Image, new: Image) -> tuple[Finding, ...]:
    """Everything in a home that a move from one image to another concerns, worst first."""
    environments = (group.path for group in home.groups if group.kind in (Kind.venv, Kind.conda))
    lookup = _Lookup(frozenset(home.libraries), _outermost(environments), frozenset(home.first))
    findings = [
        *(finding for group in home.groups for finding in _group(group, lookup, old, new)),
        *(finding for kernel in home.kernels for finding in _kernel(kernel, lookup, old, new)),
        *(finding for script in home.scripts for finding in _script(script, old, new)),
        *_shadows(home, lookup, old, new),
        *(Finding(Verdict.ok, "", f"not everything was looked at: {why}") for why in home.missed),
    ]
    return _ordered(map(_plain, findings))


def as_volume(home: Home, path: str) -> Home:
    """The facts about a volume that is at `path` in the session, to be judged as a home is.

    Nothing in a volume is in PATH, and Jupyter looks for no kernels there.
    """

    def there(relative: str) -> str:
        return posixpath.normpath(posixpath.join(path, relative))

    return replace(
        home,
        groups=tuple(replace(g, path=there(g.path), source=g.source and there(g.source)) for g in home.groups),
        scripts=tuple(replace(script, path=there(script.path)) for script in home.scripts),
        missed=tuple(f"{path}: {why}" for why in home.missed),
        kernels=(),
        programs={},
        first=(),
    )


def together(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings of several places, worst first; of very many, and of very long ones, only how many more there are."""
    ordered = _ordered(findings)
    sizes = accumulate(finding.size for finding in ordered)
    kept = sum(1 for _ in takewhile(lambda size: size <= MOST_TEXT, islice(sizes, MOST_FINDINGS)))
    if kept == len(ordered):
        return ordered
    return (*ordered[:kept], Finding(ordered[kept].verdict, "", f"and {len(ordered) - kept:,} more"))


def _ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: (-_RANK[finding.verdict], finding.path, finding.what)))


def _plain(finding: Finding) -> Finding:
    """A finding in which no name has lines of its own: they would look like commands of Refit's."""
    return Finding(
        finding.verdict,
        on_a_line(finding.path),
        on_a_line(clipped(finding.what, _SHOWN)),
        tuple(map(on_a_line, finding.recipe)),
    )


def verdict(findings: Sequence[Finding]) -> Verdict:
    """That of the worst finding."""
    return max((finding.verdict for finding in findings), key=_RANK.__getitem__, default=Verdict.ok)


_RANK = {verdict: rank for rank, verdict in enumerate(Verdict)}


# --- Groups ----------------------------------------------------------------------------------------------------------


def _group(group: Group, lookup: _Lookup, old: Image, new: Image) -> Iterator[Finding]:
    reasons, broken = [*_python(group, old, new), *_native(group, lookup, old, new)], _broken(group, old)
    if reasons:
        recipe = _recipe(group, new)
        yield Finding(Verdict.rebuild if recipe else Verdict.blocked, group.path, "; ".join(reasons), recipe)
    elif broken:
        yield Finding(Verdict.ok, group.path, f"doesn't work on the old image either: {'; '.join(broken)}")


def _python(group: Group, old: Image, new: Image) -> Iterator[str]:
    """Why Python won't find a group, or can't load it."""
    if group.kind is Kind.user and group.python == old.python and old.user_site:
        count = f"{len(group.distributions)} packages"
        if new.python != old.python:
            yield f"{count} were installed for Python {old.python}, and the new image has {new.python}"
        elif not new.user_site:
            yield f"the new image's Python doesn't look for packages in homes; {count} are here"
    elif group.kind is Kind.venv and _runs(group.interpreter, group.python, old):
        yield from _venv(group, new)
    elif group.kind is Kind.loose and _tag(old.python) in group.native.tags and new.python != old.python:
        example = group.native.tags[_tag(old.python)]
        yield f"{example} was compiled for Python {old.python}, and the new image has {new.python}"


def _venv(group: Group, new: Image) -> Iterator[str]:
    version = new.interpreters.get(group.interpreter)
    if _in_image(group.interpreter) and version is None:
        yield f"its Python, {group.interpreter}, is not in the new image"
    elif version and group.python and version != group.python:
        yield f"it was made for Python {group.python}, and {group.interpreter} is {version} in the new image"


def _native(group: Group, lookup: _Lookup, old: Image, new: Image) -> Iterator[str]:
    """Why the loader won't start what was compiled."""
    for interface, (version, example) in group.native.versions.items():
        if _has(old, interface, version) and not _has(new, interface, version):
            provided = new.interfaces.get(interface, "none")
            yield f"{example} needs {interface} {version}, and the new image has {provided}"
    lost = {
        soname: example
        for soname, example in group.native.libraries.items()
        if soname in old.libraries and soname not in new.libraries and soname not in lookup.libraries
    }
    for soname, example in list(lost.items())[:MOST_NAMED]:
        yield f"{example} needs {_named(soname)}, which the new image doesn't have"
    if len(lost) > MOST_NAMED:
        yield f"and {len(lost) - MOST_NAMED} more libraries"


def _broken(group: Group, old: Image) -> list[str]:
    """Reasons for which a group doesn't work as it is."""
    reasons = []
    if group.kind is Kind.venv and not _runs(group.interpreter, group.python, old):
        reasons.append("its Python is not there" if group.interpreter else "its Python leads nowhere")
    for interface, (version, example) in group.native.versions.items():
        if not _has(old, interface, version):
            reasons.append(f"{example} needs {interface} {version}")
    return reasons


def _recipe(group: Group, new: Image) -> tuple[str, ...]:
    """The commands that make a group anew in the new image; none: nobody but its owner knows how."""
    folder = _at(group.path)
    if group.kind is Kind.venv:
        kept = f"{folder}.before"
        return (
            f"mv {folder} {kept}",
            f"python3 -m venv {folder}",
            *_installing(f"{folder}/bin/python -m pip install", group),
            f"rm -r {kept}  # when all is well",
        )
    if group.kind is Kind.user:
        target = f"~/.local/lib/python{new.python}/site-packages"
        pip = "python3 -m pip install --user" if new.user_site else f"python3 -m pip install --target {target}"
        return (*_installing(pip, group), f"rm -r {folder}  # when all is well")
    if group.kind is Kind.conda:
        return (f"conda install --prefix {folder} --force-reinstall --all",) if "conda" in new.programs else ()
    if group.kind is Kind.editor:
        return (f"code-server --install-extension {quote(_extension(group.path))} --force",)
    command = _MADE.get(posixpath.basename(group.source))
    return (f"cd {_at(posixpath.dirname(group.source))} && {command}",) if command else ()


_MADE = {
    "setup.py": "python3 setup.py build_ext --inplace --force",
    "pyproject.toml": "python3 -m pip install --editable .",
    "Makefile": "make --always-make",
}


def _at(path: str) -> str:
    if _in_image(path):  # or in a volume
        return quote(path)
    return f"~/{quote(path)}" if path else "~"


def _installing(pip: str, group: Group) -> Iterator[str]:
    exact = [
        f"{distribution.name}=={distribution.version}"
        for distribution in group.distributions
        if not distribution.elsewhere and distribution.name not in _PIP
    ]
    if exact:
        yield f"{pip} {' '.join(map(quote, exact))}"
    for distribution in group.distributions:
        if distribution.elsewhere:
            name = f"{distribution.name} {distribution.version}"
            yield f"# {name} came from a folder or a repository: install it from there"


_PIP = frozenset({"pip", "setuptools", "wheel"})


def _extension(path: str) -> str:
    """The identifier of an editor's extension: its folder without version and platform, `-1.2.3-linux-x64`."""
    parts = posixpath.basename(path).split("-")
    plain = len(parts)  # the parts from here on are the platform's, or the version is the last
    while plain and _WORD.fullmatch(parts[plain - 1]):
        plain -= 1
    for number in range(max(plain - 1, 1), len(parts)):
        if _VERSION.fullmatch(parts[number]):
            return "-".join(parts[:number])
    return "-".join(parts)


def _named(soname: str) -> str:
    if _CUDA.match(soname):
        return f"{soname} of CUDA"
    return f"{soname}, Python's own library" if _PYTHON_LIBRARY.match(soname) else soname


def _has(image: Image, interface: str, version: str) -> bool:
    """Whether an image has an interface in this version; of those that nobody knows anything of, it has all."""
    provided = image.interfaces.get(interface, "")
    return not provided or numbered(version) <= numbered(provided)


def _runs(interpreter: str, python: str, image: Image) -> bool:
    if not interpreter:
        return False
    version = image.interpreters.get(interpreter, "")
    return not _in_image(interpreter) or bool(version and version == (python or version))


def _in_image(path: str) -> bool:
    return path.startswith("/")


def _tag(python: str) -> str:
    return f"cpython-{python.replace('.', '')}"


# --- What names a program by its path ---------------------------------------------------------------------------------


def _kernel(kernel: Starter, lookup: _Lookup, old: Image, new: Image) -> Iterator[Finding]:
    if _is_of_environment(kernel.program, lookup, new):  # made anew with its environment, at the same path
        return
    what = f"the kernel {kernel.name!r} starts {kernel.program}"
    if _gone(kernel, old, new):
        recipe = (f"python3 -m ipykernel install --user --name {quote(kernel.name)}",)
        python = posixpath.basename(kernel.program).startswith("python")
        verdict = Verdict.rebuild if python else Verdict.blocked
        yield Finding(verdict, kernel.path, f"{what}, which is not in the new image", recipe if python else ())
    elif not _there(kernel, old):
        yield Finding(Verdict.ok, kernel.path, f"{what}, which is not there now either")


def _script(script: Starter, old: Image, new: Image) -> Iterator[Finding]:
    if not _gone(script, old, new):
        return
    program = posixpath.basename(script.program)
    what = f"its first line names {script.program}, which is not in the new image"
    if program in new.programs or program.startswith("python"):
        interpreter = program if program in new.programs else "python3"
        recipe = (f"sed -i '1s|^#!.*|#!/usr/bin/env {interpreter}|' {_at(script.path)}",)
        yield Finding(Verdict.rebuild, script.path, what, recipe)
    else:
        yield Finding(Verdict.blocked, script.path, what)


def _gone(starter: Starter, old: Image, new: Image) -> bool:
    return _there(starter, old) and not _there(starter, new)


def _there(starter: Starter, image: Image) -> bool:
    if "/" not in starter.program:
        return starter.program in image.programs
    return bool(starter.leads_to) and (not _in_image(starter.leads_to) or starter.leads_to in image.files)


def _is_of_environment(program: str, lookup: _Lookup, image: Image) -> bool:
    """Whether a program is in an environment of the home."""
    inside = program.removeprefix(f"{image.home}/")
    if inside == program or not lookup.environments:
        return False
    inside = posixpath.normpath(inside)
    # A name that sorts between an environment and a path in it would be in it too, and none is inside another.
    return inside.startswith(lookup.environments[max(bisect(lookup.environments, inside) - 1, 0)])


def _outermost(folders: Iterable[str]) -> Sequence[str]:
    kept: list[str] = []
    for folder in sorted(f"{folder}/" for folder in folders):
        if not kept or not folder.startswith(kept[-1]):
            kept.append(folder)
    return kept


# --- Who wins where both have something -------------------------------------------------------------------------------


def _shadows(home: Home, lookup: _Lookup, old: Image, new: Image) -> Iterator[Finding]:
    """Packages of the image that are not used because the home has them too, or the other way round."""
    places = {folder: place for place, folder in reversed([*enumerate(new.path)])}
    for name, path in home.programs.items():
        folder = posixpath.dirname(path)
        comes_first = folder in lookup.first or _is_before(folder, new.programs.get(name, ""), new, places)
        if name in new.programs and comes_first:
            yield Finding(Verdict.ok, path, f"is used in the place of the image's {new.programs[name]}")
        elif name in new.programs and name not in old.programs:
            yield Finding(Verdict.ok, path, f"isn't used any more: the new image has {new.programs[name]}")
    own = {str(canonicalize_name(name)): version for name, version in new.distributions.items()}
    for group in home.groups:
        if group.kind is Kind.user and group.python == new.python and new.user_site:
            yield from _twice(group, own, new)
    for kernel in home.kernels:
        if kernel.name == "python3" and not _is_of_environment(kernel.program, lookup, new):
            yield Finding(Verdict.ok, kernel.path, "is used in the place of the image's own Python kernel")


def _is_before(folder: str, program: str, image: Image, places: Mapping[str, int]) -> bool:
    """Whether PATH has a folder of the home before that of a program of the image; `places`: folder of PATH → place."""
    own = places.get(f"{image.home}/{folder}", len(image.path))
    return own < places.get(posixpath.dirname(program), len(image.path))


def _twice(group: Group, own: Mapping[str, str], image: Image) -> Iterator[Finding]:
    both = [
        f"{distribution.name} {distribution.version} (the image's: {own[canonicalize_name(distribution.name)]})"
        for distribution in group.distributions
        if own.get(canonicalize_name(distribution.name), distribution.version) != distribution.version
    ]
    if both:
        whose = "those in the home" if image.user_wins else "those of the image"
        yield Finding(Verdict.ok, group.path, f"twice there, {whose} are used: {some(both, MOST_NAMED)}")
