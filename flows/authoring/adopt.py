"""Make a catalog of a checkout of workbench-images, and say what of it could not be carried over.

Its bundles come along with the versions that they are locked to. Bases, CUDA layers and those IDEs that Refit has under
the same name are Refit's own. A recipe is in the release only if its profile can be assembled, and only with the CUDA
that it had, or one that a person has chosen. Nothing is left out without a word.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.authoring.adopted import Adoption, Recipe, instructions, places
from flows.catalog import choices, edit, load, tag, tree
from flows.catalog.lineage import NUMBERED
from flows.catalog.model import Base, Catalog, python_version
from flows.catalog.release import ReleaseFile, assemble, why_not
from flows.catalog.tag import ForeignTag
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes, bounds, parse_plain_json, parse_toml, text_of
from flows.core.errors import RefitError
from flows.images.recipe import Assembler
from flows.locks import python
from flows.locks.pipfile import Pipfile, digest, read_pipfile

_PYTHON = re.compile(r"py3[0-9]+")
_RUN = re.compile(r"^RUN\s+(?!\[)", re.MULTILINE)
_COPY = re.compile(r"^(COPY\s+(?:--(?!from=)\S+\s+)*)(?!--)(\S.*)$", re.MULTILINE)
_ACCESS = """\
# As workbench-images expects of its IDEs: look whether this is so.
access:
  port: 8888
  health: /api
"""
_THEIR_CUDA = "runtime-cudnn"  # what their images with CUDA stand on
_MINIMAL = "minimal"
_NO_PACKAGES = ("", "[[source]]", "[requires]", "[pipenv]", "[scripts]")
# pipenv takes `six = "1.16"` for `==1.16`.
_BARE_VERSION = re.compile(r"""((?:=|\bversion\s*=)\s*["'])(\d[^"',]*(?=["']))""")
_THEIR_HOME, _HOME = "/opt/app-root/src", "/home/dev"
_CUDA_VERSION = re.compile(r"^ENV CUDA_VERSION[ =](\S+)")


def adopt(checkout: Path, target: Path, own: Catalog, cuda: str = "") -> Adoption:
    """Make a catalog in `target` of a checkout of workbench-images.

    Args:
        checkout: where `snippets/bundles`, `snippets/ides` and `recipes` are.
        target: a folder that isn't there yet, or is empty.
        own: the catalog whose bases, IDEs and snippets the new one has.
        cuda: the level of Refit's CUDA for their images with CUDA, also if its version is another one; empty: only
            where the version is theirs.

    Raises:
        RefitError: the checkout is none, or the target has something in it.
    """
    if not (checkout / "snippets" / "bundles").is_dir():
        raise RefitError(f"{checkout} is no checkout of workbench-images.", why="It has no folder snippets/bundles.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RefitError(f"{target} is there already, and not empty.", fix="name a folder that isn't there yet.")
    made = Adoption(target)
    try:
        _adopt(checkout, target, own, cuda, made)
        made.write_report()
    except OSError as error:
        fix = "name another folder."
        raise RefitError(f"The catalog can't be made in {target}.", why=str(error), fix=fix) from None
    return made


def _adopt(checkout: Path, target: Path, own: Catalog, cuda: str, made: Adoption) -> None:
    for part in ("base", "ides", "snippets"):
        tree.copy(own.root / part, target / part, own.root)
    for part in ("bundles", "releases"):
        (target / part).mkdir()
    ides = dict(_ides(checkout, made, own))
    bundles = dict(_bundles(checkout, made))
    while _refused(bundles, made):
        pass
    _without_python(bundles, made)
    ides = _fitting(ides, bundles, made, own)
    _rest(checkout, made, own)
    _release(_Recipes(checkout, own, ides, bundles, cuda, made), made)


def _numbered(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Number, name and folder of each recipe, in the order of menus."""
    folders = [(match, path) for path in folder.iterdir() if path.is_dir() and (match := NUMBERED.fullmatch(path.name))]
    for match, path in sorted(folders, key=lambda found: int(found[0][1])):
        yield match[1], match[2], path


def _name(theirs: str, place: str, made: Adoption) -> str:
    """A name without what would make tags ambiguous."""
    name = re.sub(r"[^a-z0-9]", "", theirs.lower())
    if name != theirs:
        made.note(place, f"is called {name} here: in a name, hyphens would make tags ambiguous")
    return name


# --- Bundles --------------------------------------------------------------------------------------------------------


def _bundles(checkout: Path, made: Adoption) -> Iterator[tuple[str, str]]:
    """Their name → ours, of each bundle that was carried over."""
    for number, theirs, folder in _numbered(checkout / "snippets" / "bundles"):
        place = f"snippets/bundles/{folder.name}"
        name = _name(theirs, place, made)
        target = made.catalog / "bundles" / f"{number}-{name}"
        target.mkdir(parents=True)
        (target / "display.txt").write_text(f"{_first_line(folder / 'display.txt') or theirs}\n", encoding="utf-8")
        _packages(folder / "os" / "os-packages.txt", target / "os" / "os-packages.txt", f"{place}/os", made)
        _custom(folder, target, place, theirs, made)
        for path in sorted(folder.iterdir()):
            if path.is_dir() and _PYTHON.fullmatch(path.name):
                _pipfile(path, target / path.name, f"{place}/{path.name}", made)
            elif path.name not in ("display.txt", "os", "custom", "builder", "selection-override"):
                made.note(f"{place}/{path.name}", "was left out: nothing reads it")
        yield theirs, name


def _packages(source: Path, target: Path, place: str, made: Adoption) -> None:
    if not source.is_file():
        return
    names = _names(source)
    good = [name for name in names if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]*", name)]
    if odd := sorted(set(names) - set(good)):
        made.note(place, f"these are no names of packages, and were left out: {', '.join(odd)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(f"{name}\n" for name in good), encoding="utf-8")


def _names(file: Path) -> list[str]:
    """The names in a list of packages, each once, without comments."""
    return list(dict.fromkeys(name for line in _lines(file) if (name := line.partition("#")[0].strip())))


def _custom(folder: Path, target: Path, place: str, theirs: str, made: Adoption) -> None:
    snippet = folder / "custom" / "custom.snippet"
    if (folder / "builder").is_dir():
        what = "was left out: stages that copy from each other can't be carried over; download and check in a snippet"
        made.note(f"{place}/builder", what)
        made.incomplete.setdefault(theirs, []).append(f"{place}/builder")
        _each_instruction(folder / "builder", f"{place}/builder", "was left out", made)
    if not snippet.is_file():
        return
    text = _text(snippet)
    if "--from=" in text or (folder / "custom" / "files").is_dir():
        made.note(f"{place}/custom", "was left out: it copies files, and a bundle here has none of its own")
        made.incomplete.setdefault(theirs, []).append(f"{place}/custom")
        _each_instruction(folder / "custom", f"{place}/custom", "was left out", made)
        return
    (target / "custom").mkdir()
    (target / "custom" / "custom.snippet.j2").write_text(_template(text), encoding="utf-8")
    _at_home(text, f"{place}/custom/{snippet.name}", made)
    made.note(f"{place}/custom", "was carried over as it is: `refit lint` shows what has to change")


def _pipfile(folder: Path, target: Path, place: str, made: Adoption) -> None:
    """A Pipfile with its comments, and its lock if that still fits; what only pipenv takes is taken out."""
    text = "".join(f"{line}\n" for line in _accepted(_lines(folder / "Pipfile"), folder.name, place, made))
    target.mkdir()
    (target / "Pipfile").write_text(text, encoding="utf-8")
    try:
        pipfile = read_pipfile(target / "Pipfile")
    except Mistakes as mistakes:
        made.note(place, f"was left out: {mistakes.mistakes[0].what}")
        shutil.rmtree(target)
        return
    if not (folder / "Pipfile.lock").is_file():
        made.note(place, "has to be locked: it has no lock")
        return
    try:
        lock = parse_plain_json(text_of(folder / "Pipfile.lock", bounds.JSON), folder / "Pipfile.lock")
        _know_again(lock, folder / "Pipfile", pipfile)
        (target / "Pipfile.lock").write_text(json.dumps(lock, indent=4, sort_keys=True) + "\n", encoding="utf-8")
        for name, content in python.exports(lock, pipfile).items():
            (target / name).write_text(content, encoding="utf-8")
        python.verify(target)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RefitError) as error:
        why = error.mistakes[0].what if isinstance(error, Mistakes) else f"its lock can't be used ({error})"
        made.note(place, f"has to be locked again: {why}")
        _unlock(target)


def _unlock(folder: Path) -> None:
    """Remove a lock, and what was exported of it."""
    for file in (folder / "Pipfile.lock", *folder.glob("requirements*.txt")):
        file.unlink(missing_ok=True)


def _know_again(lock: Any, theirs: Path, pipfile: Pipfile) -> None:
    """Let a lock fit a Pipfile that says the same as theirs, which it was made of, in other words."""
    before = parse_toml(text_of(theirs, bounds.TOML), theirs)
    same = {name: _exact(part) if isinstance(part, dict) else part for name, part in before.items()}
    known = lock["_meta"]["hash"]
    if (
        known.get("sha256") == digest(before)
        and digest(same | {"requires": before.get("requires", {})}) == pipfile.digest
    ):
        known["sha256"] = pipfile.digest


def _exact(packages: Mapping[str, Any]) -> dict[str, Any]:
    """The packages that are asked for, with `==` before versions without an operator."""

    def exact(version: object) -> object:
        return f"=={version}" if isinstance(version, str) and version[:1].isdigit() else version

    return {
        name: {**asked, "version": exact(asked["version"])}
        if isinstance(asked, dict) and "version" in asked
        else exact(asked)
        for name, asked in packages.items()
    }


def _accepted(lines: Iterable[str], folder: str, place: str, made: Adoption) -> Iterator[str]:
    """The lines of a Pipfile that Refit takes."""
    section = ""
    for line in lines:
        section = line.strip() if line.lstrip().startswith("[") else section
        if section == "[dev-packages]":
            if line.strip() not in ("", section):
                made.note(place, f"was left out of it, because [dev-packages] is in no image: {line.strip()}")
        elif section not in _NO_PACKAGES and (exact := _BARE_VERSION.sub(r"\g<1>==\g<2>", line)) != line:
            yield exact
        elif section == "[[source]]" and re.match(r"\s*verify_ssl\s*=\s*false", line):
            made.note(place, "its indexes are checked now: verify_ssl was false")
            yield "verify_ssl = true"
        elif section == "[requires]" and re.match(r"\s*python_", line):
            if line.lstrip().startswith("python_version"):
                yield f'python_version = "{python_version(folder)}"'
        else:
            yield line


def _refused(bundles: Mapping[str, str], made: Adoption) -> bool:
    """Leave out the Pipfiles that a catalog refuses; whether there were any: one may hide the mistakes of another."""
    theirs, gone = {name: theirs for theirs, name in bundles.items()}, set[Path]()
    try:
        load.load_catalog(made.catalog)
    except Mistakes as found:
        for mistake in found.mistakes:
            folder = mistake.file.parent
            if _PYTHON.fullmatch(folder.name) and folder not in gone:
                number, _, name = folder.parent.name.partition("-")
                made.note(f"snippets/bundles/{number}-{theirs[name]}/{folder.name}", f"was left out: {mistake.what}")
                shutil.rmtree(folder)
                gone.add(folder)
    return bool(gone)


def _without_python(bundles: dict[str, str], made: Adoption) -> None:
    """A bundle that has no Python of its own gets that of the smallest: here, every image has one."""
    folders = {NUMBERED.fullmatch(path.name)[2]: path for path in (made.catalog / "bundles").iterdir()}  # type: ignore[index]
    pythons = {name: [p for p in folder.iterdir() if _PYTHON.fullmatch(p.name)] for name, folder in folders.items()}
    for theirs, name in tuple(bundles.items()):
        if pythons[name]:
            continue
        if not pythons.get(_MINIMAL):
            shutil.rmtree(folders[name])
            del bundles[theirs]
            made.note(theirs, "was left out: it has no Python that can be carried over")
            continue
        for path in pythons[_MINIMAL]:
            shutil.copytree(path, folders[name] / path.name)
        made.note(theirs, f"has no Python of its own: it got that of {_MINIMAL}")


# --- IDEs -----------------------------------------------------------------------------------------------------------


def _ides(checkout: Path, made: Adoption, own: Catalog) -> Iterator[tuple[str, str]]:
    """Their name → ours, of each IDE."""
    number = max(
        (int(match[1]) for path in own.root.glob("ides/*") if (match := NUMBERED.fullmatch(path.name))), default=0
    )
    for _, theirs, folder in _numbered(checkout / "snippets" / "ides"):
        place = f"snippets/ides/{folder.name}"
        name = _name(theirs, place, made)
        if name in own.ides:
            made.note(place, f"Refit's own {name} takes its place: what was added to theirs isn't in it")
            _replaced(folder, place, own, name, made)
        elif not (folder / f"{theirs}.snippet").is_file():
            made.note(place, f"was left out: it has no {theirs}.snippet")
            continue
        else:
            number += 1
            _ide(folder, theirs, made.catalog / "ides" / f"{number}-{name}", name, made)
        yield theirs, name


def _replaced(folder: Path, place: str, own: Catalog, name: str, made: Adoption) -> None:
    """Note each package, instruction and file that Refit's IDE of that name may lack."""
    theirs, system = folder / "os" / "os-packages.txt", own.ides[name].packages
    missing = [package for package in _names(theirs) if package not in system]
    for line, package in places(_lines(theirs), missing):
        made.note(f"{place}/os/os-packages.txt:{line}", f"{package} is not in Refit's {name}")
    _each_instruction(folder, place, f"may not be in Refit's {name}", made)
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != theirs):
        if file.suffix != ".snippet" and file.name != "display.txt":
            made.note(f"{place}/{file.relative_to(folder).as_posix()}", f"was left out: Refit's own {name} is there")


def _each_instruction(folder: Path, place: str, what: str, made: Adoption) -> None:
    """A note of each instruction of the snippets and Containerfiles in a folder."""
    for file in sorted(path for path in folder.glob("*") if path.is_file()):
        if file.suffix == ".snippet" or file.name in ("Containerfile", "Dockerfile"):
            for line, instruction in instructions(_text(file)):
                made.note(f"{place}/{file.name}:{line}", f"{what}: {instruction}")


def _at_home(text: str, place: str, made: Adoption) -> None:
    for line, words in enumerate(text.splitlines(), 1):
        if _THEIR_HOME in words:
            made.note(f"{place}:{line}", f"{_THEIR_HOME} is {_HOME} here: {words.strip()}")


def _ide(folder: Path, theirs: str, target: Path, name: str, made: Adoption) -> None:
    place = f"snippets/ides/{folder.name}"
    target.mkdir()
    text = _text(folder / f"{theirs}.snippet")
    if re.search(r"\$\{?RELEASE\b", text):
        made.note(place, "names the release, which is in no stage here: ${RELEASE} is empty in it")
    moved = _COPY.sub(lambda found: found[1] + _from_files(found[2]), text)
    (target / f"{name}.snippet.j2").write_text(_template(moved), encoding="utf-8")
    (target / "display.txt").write_text(f"{_first_line(folder / 'display.txt') or theirs}\n", encoding="utf-8")
    (target / "ide.yaml").write_text(_ACCESS, encoding="utf-8")
    _packages(folder / "os" / "os-packages.txt", target / "os" / "os-packages.txt", f"{place}/os", made)
    if (folder / "files").is_dir():
        _files(folder / "files", target / "files", place, made)
    made.note(
        place, "was carried over as it is: `refit lint` shows what has to change, ide.yaml says how it is reached"
    )


def _files(source: Path, target: Path, place: str, made: Adoption) -> None:
    try:
        tree.copy(source, target, source)
    except Mistakes as mistakes:
        made.note(f"{place}/files", f"was left out: {mistakes.mistakes[0].what}")


def _fitting(ides: Mapping[str, str], bundles: Mapping[str, str], made: Adoption, own: Catalog) -> dict[str, str]:
    """Their IDEs without those of Refit's that go only with bundles which are not here."""
    gone: set[str] = set()
    for ide in own.ides.values():
        if missing := {name for rule in ide.config.only for name in rule.bundle} - set(bundles.values()):
            gone.add(ide.name)
            shutil.rmtree(made.catalog / ide.folder.relative_to(own.root))
            made.note(f"Refit's {ide.name}", f"was left out: it goes only with {', '.join(sorted(missing))}")
    return {theirs: name for theirs, name in ides.items() if name not in gone}


def _from_files(words: str) -> str:
    """The words of a COPY, whose sources lie in `files/` here; the last word is where they go."""
    *sources, destination = words.split()
    return " ".join([*(f"files/{source.removeprefix('./')}" for source in sources), destination])


def _template(text: str) -> str:
    """A snippet as a template; what a shell would replace there, Refit replaces here."""
    text = text.replace(_THEIR_HOME, _HOME)
    text = re.sub(r"\{[{%#]", lambda found: f"{{{{ {found[0]!r} }}}}", text)
    text = re.sub(r"\$\{?PYTHON_FOLDER\b\}?", "python{{ python_version }}", text)
    text = _RUN.sub("RUN {{ shell.begin() }} ", re.sub(r"\$\{?(CUDA|RELEASE)\b\}?", "", text))
    start = '{% import "snippets/shell.j2" as shell with context %}\n' if "shell.begin()" in text else ""
    return f"{start}{text.rstrip()}\n"


# --- Everything else ------------------------------------------------------------------------------------------------


def _rest(checkout: Path, made: Adoption, own: Catalog) -> None:
    for folder, what in (
        ("base", "Refit's own bases take its place; add packages that you miss to base/<os>/os-packages.txt"),
        ("cuda-layer", "was left out: images with CUDA stand on Refit's own layers"),
    ):
        if (checkout / folder).is_dir():
            made.note(folder, what)
    if (checkout / "base").is_dir():
        made.note("base", f"there, a person may write to /opt/app-root; here, what they install goes to {_HOME}/.local")
    _labels(checkout, made)
    for layer in sorted({file.parent for file in _containerfiles(checkout.glob("cuda-layer/**/*"))}):
        _each_instruction(layer, layer.relative_to(checkout).as_posix(), "was left out", made)
    for theirs in sorted(path for path in checkout.glob("base/*") if path.is_dir()):
        _base(theirs, f"base/{theirs.name}", own, made)


def _labels(checkout: Path, made: Adoption) -> None:
    """Note the labels of their images, each once."""
    known: set[str] = set()
    for file in _containerfiles(checkout.glob("recipes/*/*")):
        for line, text in instructions(_text(file)):
            if text.upper().startswith("LABEL ") and (name := text[6:].partition("=")[0].strip()) not in known:
                known.add(name)
                made.note(f"{file.relative_to(checkout).as_posix()}:{line}", f"was left out: {text}")


def _containerfiles(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.name in ("Containerfile", "Dockerfile") and path.is_file())


def _base(folder: Path, place: str, own: Catalog, made: Adoption) -> None:
    """Note each package, instruction and file that Refit's base of that name may lack."""
    base, listed = own.bases.get(folder.name), folder / "os-packages.txt"
    missing = [name for name in _names(listed) if not base or name not in base.packages]
    for line, package in places(_lines(listed), missing):
        made.note(f"{place}/{listed.name}:{line}", f"{package} is not in Refit's {folder.name}")
    _each_instruction(folder, place, f"may not be in Refit's {folder.name}", made)
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != listed):
        if file.name not in ("Containerfile", "Dockerfile"):
            made.note(f"{place}/{file.relative_to(folder).as_posix()}", "was left out: Refit's own base is there")


class _Recipes:
    """Their recipes, and what the new catalog makes of them."""

    def __init__(
        self,
        checkout: Path,
        own: Catalog,
        ides: Mapping[str, str],
        bundles: Mapping[str, str],
        cuda: str,
        made: Adoption,
    ) -> None:
        self._checkout, self._own, self._ides, self._bundles, self._made = checkout, own, ides, bundles, made
        self._chosen, self._version = cuda, _their_cuda(checkout)
        self._found = {folder.name: self._parse(folder.name) for folder in sorted((checkout / "recipes").glob("*/"))}

    def _parse(self, name: str) -> ForeignTag | None:
        return tag.parse_foreign(name, self._ides, self._bundles)

    @property
    def release(self) -> str:
        """The newest release that one of them is of; empty: there is none."""
        return max((one.release for one in self._found.values() if one), default="")

    def prepare(self) -> None:
        """Give each Pipfile the categories that IDEs of recipes need; which of them are locked is another matter."""
        users: dict[tuple[str, str], list[ForeignTag]] = {}
        for one in filter(None, self._found.values()):
            users.setdefault((one.bundle, one.python), []).append(one)
        for (bundle, version), recipes in users.items():
            [folder] = (self._made.catalog / "bundles").glob(f"*-{self._bundles[bundle]}")
            if (folder / version / "Pipfile").is_file():
                self._add_categories(folder / version, recipes)

    def _add_categories(self, folder: Path, recipes: Iterable[ForeignTag]) -> None:
        """Add what a Pipfile lacks, but for a lock that other recipes can do with as it is."""
        where = folder.relative_to(self._made.catalog)
        there = _text(folder / "Pipfile").splitlines()
        needed = {one.ide: self._category(one.ide) for one in recipes}
        missing = {ide: category for ide, category in needed.items() if category and f"[{category}]" not in there}
        held = (folder / "Pipfile.lock").is_file() and len(missing) < len(needed)
        for category in dict.fromkeys(missing.values()):
            ides = ", ".join(ide for ide, its in missing.items() if its == category)
            lines = _section(self._own, f"[{category}]")
            if held:
                added = f"add to it {' '.join(lines.split())}" if lines else "add it"
                others = ", ".join(sorted(needed.keys() - missing.keys()))
                what = (
                    f"lacks [{category}], which {ides} needs: its lock stays for {others}; {added}, and lock it again"
                )
                self._made.note(where, what)
            elif lines:
                self._append(folder, lines)
                self._made.note(where, f"got [{category}] of Refit's bundle {_MINIMAL}, which {ides} needs: lock it")

    def _category(self, ide: str) -> str:
        """The section of a Pipfile that an IDE needs; empty: none."""
        own = self._own.ides.get(self._ides[ide])
        return own.config.category if own else ""

    def _append(self, folder: Path, lines: str) -> None:
        """Add a section to a Pipfile, which no lock fits any more."""
        write_whole(folder / "Pipfile", f"{_text(folder / 'Pipfile').rstrip()}\n\n{lines}")
        _unlock(folder)

    def judged(self, catalog: Catalog) -> list[Recipe]:
        """The outcome for each of them."""
        possible, assembler = list(choices.possible(catalog)), Assembler(catalog, _as_listed)
        return [self._judged(name, one, catalog, possible, assembler) for name, one in self._found.items()]

    def _judged(
        self,
        name: str,
        one: ForeignTag | None,
        catalog: Catalog,
        possible: Collection[Mapping[str, str]],
        assembler: Assembler,
    ) -> Recipe:
        if one is None:
            return Recipe(name, why="its name isn't that of a profile")
        if one.cuda and (why := self._other_cuda(catalog)):
            return Recipe(name, why=why)
        asked = {"os": one.os, "python": one.python, "bundle": self._bundles[one.bundle], "ide": self._ides[one.ide]}
        asked["cuda"] = self._level(name, one, catalog) if one.cuda else choices.NONE
        line = edit.flow(choices.written(asked))
        level = asked["cuda"] if one.cuda else ""
        if asked not in possible:
            return Recipe(name, line, level, "; ".join(why_not(choices.choice(asked), catalog)))
        why = self._lacks(one) or _obstacle(assembler, catalog, asked, self.release)
        return Recipe(name, line, level, why)

    def _level(self, name: str, one: ForeignTag, catalog: Catalog) -> str:
        """The level of Refit's CUDA that an image stands on: the lowest, where its Python packages bring their own."""
        levels = catalog.cuda.levels if catalog.cuda else {}
        chosen, lowest = self._chosen or _THEIR_CUDA, next((name for name in levels if not levels[name].above), "")
        folder = catalog.bundles[self._bundles[one.bundle]].pythons.get(one.python)
        brought = _brought(python.locked(folder) if folder else {})
        if not brought or not lowest or chosen == lowest:
            return chosen
        theirs, place = self._version
        beside = f" Programs that look for CUDA {theirs} beside them ({place}) don't find it." if theirs else ""
        what = f"stands on `cuda: {lowest}`: its Python packages bring a CUDA of their own ({brought}).{beside}"
        self._made.note(f"recipes/{name}", what)
        return lowest

    def _other_cuda(self, catalog: Catalog) -> str:
        """Why nobody has chosen a CUDA for their images with it; empty: it is clear."""
        ours = catalog.cuda.version if catalog.cuda else "none"
        theirs, place = self._version
        if self._chosen or (theirs and theirs.partition(".")[0] == ours.partition(".")[0]):
            return ""
        levels = ", ".join(catalog.cuda.levels) if catalog.cuda else ""
        had = f"it stands on CUDA {theirs} ({place})" if theirs else "nobody knows which CUDA it stands on"
        return f"{had}, and Refit's is {ours}: choose a level by --cuda, of {levels}"

    def _lacks(self, one: ForeignTag) -> str:
        """Why an image with that bundle would not be what it was; empty: it would be."""
        places = self._made.incomplete.get(one.bundle)
        return f"what its bundle installs did not come over: {' and '.join(places)}" if places else ""


def _their_cuda(checkout: Path) -> tuple[str, str]:
    """The version of CUDA that their images have, and the place where it stands; empty: nobody knows."""
    for file in _containerfiles(checkout.glob("cuda-layer/**/*")):
        for line, text in instructions(_text(file)):
            if found := _CUDA_VERSION.match(text):
                return found[1], f"{file.relative_to(checkout).as_posix()}:{line}"
    return "", ""


def _brought(versions: Mapping[str, str]) -> str:
    """The Python package that says best which CUDA comes with a lock's packages, and its version; empty: none does."""
    for name, version in versions.items():
        if name.startswith("nvidia-cuda-runtime") or re.search(r"\+cu\d+$", version):
            return f"{name} {version}"
    return ""


def _section(own: Catalog, header: str) -> str:
    """A section of the Pipfile of Refit's smallest bundle; empty: that has none."""
    for folder in own.bundles[_MINIMAL].pythons.values() if _MINIMAL in own.bundles else ():
        lines = _text(folder / "Pipfile").splitlines()
        if header in lines:
            rest = lines[lines.index(header) + 1 :]
            end = next((at for at, line in enumerate(rest) if line.startswith("[")), len(rest))
            return "\n".join([header, *rest[:end]]).rstrip() + "\n"
    return ""


def _release(recipes: _Recipes, made: Adoption) -> None:
    """A release of the profiles that the recipes are for, as far as they can be assembled."""
    recipes.prepare()
    catalog = load.load_catalog(made.catalog)
    made.recipes += recipes.judged(catalog)
    if not (lines := list(dict.fromkeys(recipe.line for recipe in made.recipes if not recipe.why))):
        made.note("recipes", "no profile was found: write a release file, or add profiles by `refit wizard`")
        return
    text = "\n".join([f"release: {recipes.release}", "profiles:", *(f"  - {line}" for line in lines), ""])
    (made.catalog / "releases" / f"{recipes.release}.yaml").write_text(text, encoding="utf-8")
    load.load_catalog(made.catalog)


def _obstacle(assembler: Assembler, catalog: Catalog, answers: Mapping[str, str], release: str) -> str:
    """Why a profile can't be assembled; empty: it can, as far as its system packages can be had."""
    (profile,) = assemble(ReleaseFile(release=release, profiles=(choices.choice(answers),)), catalog).profiles
    try:
        assembler.chain(profile)
    except Mistakes as found:
        return "; ".join(f"{mistake.file.relative_to(catalog.root)}: {mistake.what}" for mistake in found.mistakes)
    except RefitError as error:
        return error.what
    return ""


def _as_listed(base: Base) -> tuple[str, ...]:
    """System packages without looking for them."""
    return tuple(f"{name}=0" for name in sorted(base.packages))


def _text(file: Path) -> str:
    return bounds.read_bytes(file, bounds.TEXT).decode(errors="replace")


def _lines(file: Path) -> list[str]:
    try:
        return _text(file).splitlines()
    except OSError:
        return []


def _first_line(file: Path) -> str:
    return next((line.strip() for line in _lines(file) if line.strip()), "")
