"""Make a catalog of a checkout of workbench-images, and say what of it could not be carried over.

Its bundles come along with the versions that they are locked to. Bases, CUDA layers and those IDEs that Refit has under
the same name are Refit's own. Nothing is left out without a word.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flows.catalog import choices, edit, load, tag
from flows.catalog.lineage import NUMBERED
from flows.catalog.model import Catalog, python_version
from flows.catalog.release import Choice, why_not
from flows.catalog.tag import ForeignTag
from flows.documents import Mistakes
from flows.errors import RefitError
from flows.locks import python
from flows.locks.pipfile import read_pipfile

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


@dataclass
class Adoption:
    """What was made, and what a person has to know of it: lines of text, each with the place that it is about."""

    catalog: Path
    notes: list[str] = field(default_factory=list)
    profiles: int = 0

    def note(self, place: Path | str, what: str) -> None:
        """Add what has to be known of a place in the checkout."""
        self.notes.append(f"{place}: {what}")


def adopt(checkout: Path, target: Path, own: Catalog) -> Adoption:
    """Make a catalog in `target` of a checkout of workbench-images.

    Args:
        checkout: where `snippets/bundles`, `snippets/ides` and `recipes` are.
        target: a folder that isn't there yet, or is empty.
        own: the catalog whose bases, IDEs and snippets the new one has.

    Raises:
        RefitError: the checkout is none, or the target has something in it.
    """
    if not (checkout / "snippets" / "bundles").is_dir():
        raise RefitError(f"{checkout} is no checkout of workbench-images.", why="It has no folder snippets/bundles.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RefitError(f"{target} is there already, and not empty.", fix="name a folder that isn't there yet.")
    made = Adoption(target)
    for part in ("base", "ides", "snippets"):
        shutil.copytree(own.root / part, target / part)
    (target / "releases").mkdir()
    ides = dict(_ides(checkout, made, own))
    bundles = dict(_bundles(checkout, made))
    while _refused(bundles, made):
        pass
    _without_python(bundles, made)
    ides = _fitting(ides, bundles, made, own)
    _rest(checkout, made, own)
    _release(checkout, ides, bundles, made)
    return made


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
        _custom(folder, target, place, made)
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
    """What stands in a list of packages, each once, without comments."""
    return list(dict.fromkeys(name for line in _lines(file) if (name := line.partition("#")[0].strip())))


def _custom(folder: Path, target: Path, place: str, made: Adoption) -> None:
    snippet = folder / "custom" / "custom.snippet"
    if (folder / "builder").is_dir():
        what = "was left out: stages that copy from each other can't be carried over; download and check in a snippet"
        made.note(f"{place}/builder", what)
    if not snippet.is_file():
        return
    text = snippet.read_text(encoding="utf-8", errors="replace")
    if "--from=" in text or (folder / "custom" / "files").is_dir():
        made.note(f"{place}/custom", "was left out: it copies files, and a bundle here has none of its own")
        return
    (target / "custom").mkdir()
    (target / "custom" / "custom.snippet.j2").write_text(_template(text), encoding="utf-8")
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
        lock = json.loads((folder / "Pipfile.lock").read_text(encoding="utf-8"))
        (target / "Pipfile.lock").write_text(json.dumps(lock, indent=4, sort_keys=True) + "\n", encoding="utf-8")
        for name, content in python.exports(lock, pipfile).items():
            (target / name).write_text(content, encoding="utf-8")
        python.verify(target)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RefitError) as error:
        why = error.mistakes[0].what if isinstance(error, Mistakes) else f"its lock can't be used ({error})"
        made.note(place, f"has to be locked again: {why}")
        for old in (target / "Pipfile.lock", *target.glob("requirements*.txt")):
            old.unlink(missing_ok=True)


def _accepted(lines: Iterable[str], folder: str, place: str, made: Adoption) -> Iterator[str]:
    """The lines of a Pipfile that Refit takes."""
    section = ""
    for line in lines:
        section = line.strip() if line.lstrip().startswith("[") else section
        if section == "[dev-packages]":
            if line.strip() not in ("", section):
                made.note(place, f"was left out of it, because [dev-packages] is in no image: {line.strip()}")
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
        elif not (folder / f"{theirs}.snippet").is_file():
            made.note(place, f"was left out: it has no {theirs}.snippet")
            continue
        else:
            number += 1
            _ide(folder, theirs, made.catalog / "ides" / f"{number}-{name}", name, made)
        yield theirs, name


def _ide(folder: Path, theirs: str, target: Path, name: str, made: Adoption) -> None:
    place = f"snippets/ides/{folder.name}"
    target.mkdir()
    text = (folder / f"{theirs}.snippet").read_text(encoding="utf-8", errors="replace")
    if re.search(r"\$\{?RELEASE\b", text):
        made.note(place, "names the release, which is in no stage here: ${RELEASE} is empty in it")
    moved = _COPY.sub(lambda found: found[1] + _from_files(found[2]), text)
    (target / f"{name}.snippet.j2").write_text(_template(moved), encoding="utf-8")
    (target / "display.txt").write_text(f"{_first_line(folder / 'display.txt') or theirs}\n", encoding="utf-8")
    (target / "ide.yaml").write_text(_ACCESS, encoding="utf-8")
    _packages(folder / "os" / "os-packages.txt", target / "os" / "os-packages.txt", f"{place}/os", made)
    if (folder / "files").is_dir():
        shutil.copytree(folder / "files", target / "files")
    made.note(
        place, "was carried over as it is: `refit lint` shows what has to change, ide.yaml says how it is reached"
    )


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
    """What a COPY takes lies in `files/` here; the last word is where it goes."""
    *sources, destination = words.split()
    return " ".join([*(f"files/{source.removeprefix('./')}" for source in sources), destination])


def _template(text: str) -> str:
    """A snippet as a template; what a shell would replace there, Refit replaces here."""
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
    for file in sorted(checkout.glob("base/*/os-packages.txt")):
        base = own.bases.get(file.parent.name)
        if missed := [name for name in _names(file) if not base or name not in base.packages]:
            what = f"these of its packages are not in Refit's {file.parent.name}: {', '.join(missed)}"
            made.note(f"base/{file.parent.name}/{file.name}", what)


def _release(checkout: Path, ides: Mapping[str, str], bundles: Mapping[str, str], made: Adoption) -> None:
    """A release of the profiles that its recipes are for, as far as the new catalog can make them."""
    found: dict[str, ForeignTag] = {}
    for folder in sorted((checkout / "recipes").glob("*/")):
        if one := tag.parse_foreign(folder.name, ides, bundles):
            found[folder.name] = one
        else:
            made.note(f"recipes/{folder.name}", "was left out: its name isn't that of a profile")
    catalog = load.load_catalog(made.catalog)
    possible = list(choices.possible(catalog))
    wanted: list[dict[str, str]] = []
    for text, one in found.items():
        asked = {"os": one.os, "python": one.python, "bundle": bundles[one.bundle], "ide": ides[one.ide]}
        fitting = [answers for answers in possible if asked.items() <= answers.items()]
        with_cuda = [answers for answers in fitting if answers["cuda"] == _THEIR_CUDA]
        chosen = next(iter(with_cuda if one.cuda and with_cuda else fitting), None)
        if chosen is None:
            why = "; ".join(why_not(Choice.model_validate(asked), catalog))
            made.note(f"recipes/{text}", f"was left out: this catalog can't make it: {why}")
            continue
        if one.cuda:
            level = chosen["cuda"]
            what = "without CUDA" if level == choices.NONE else f"with the level {level} of Refit's own CUDA"
            made.note(f"recipes/{text}", f"was carried over {what}")
        if chosen not in wanted:
            wanted.append(chosen)
    name = max((one.release for one in found.values()), default="")
    if not wanted:
        made.note("recipes", "no profile was found: write a release file, or add profiles by `refit wizard`")
        return
    lines = [f"  - {edit.flow(choices.written(answers))}" for answers in wanted]
    text = "\n".join([f"release: {name}", "profiles:", *lines, ""])
    (made.catalog / "releases" / f"{name}.yaml").write_text(text, encoding="utf-8")
    made.profiles = len(wanted)
    load.load_catalog(made.catalog)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _first_line(file: Path) -> str:
    return next((line.strip() for line in _lines(file) if line.strip()), "")
