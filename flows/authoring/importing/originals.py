"""The Containerfiles of their recipes: what they stand on, and whether they say what their snippets say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from flows.authoring.importing.checkout import Checkout
from flows.authoring.importing.containerfile import instructions
from flows.authoring.importing.cuda import origin
from flows.authoring.importing.report import Adoption
from flows.catalog.model import python_version
from flows.catalog.tag import ForeignTag
from flows.core.documents import bounds
from flows.core.formatting import some

_TOLD = 5  # packages whose versions differ
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]\n]*\])?==([^\s;\\]+)", re.MULTILINE)


class Originals:
    """The files in the folders of recipes, compared with the snippets that they were made of."""

    def __init__(self, checkout: Checkout, adoption: Adoption) -> None:
        self._checkout, self._made, self._labels = checkout, adoption, dict[str, str]()
        self._told = set[str]()  # keys of labels
        self._snippets = {
            path: {part for step in instructions(checkout.text(path)) for _, part in step.parts()}
            for path in checkout.below("snippets")
            if path.endswith(".snippet")
        }
        self._copies = {self._hash(path) for path in checkout.below("snippets")}

    def _hash(self, path: str) -> bytes:
        return sha256(self._checkout.content(path, bounds.COPIED)).digest()

    def why_another(self, name: str, one: ForeignTag) -> str:
        """Why the image of a recipe is not the one that its name says; empty: it is."""
        path = f"recipes/{name}/Containerfile"
        if not self._checkout.has(path):
            return "it has no Containerfile"
        begins = origin(self._checkout.text(path))
        expected = (one.os, one.python, one.cuda)
        if not begins.os:
            return f"it stands on {begins.image}, which is no base of theirs" if begins.image else "it has no FROM"
        if (begins.os, begins.python, bool(begins.level)) != expected:
            return f"it stands on {begins.image}, and its name says otherwise"
        return ""

    def level(self, name: str) -> str:
        """The level of their CUDA that a recipe stands on; empty: none."""
        return origin(self._checkout.text(f"recipes/{name}/Containerfile")).level

    def tell(self, name: str, one: ForeignTag | None) -> int:
        """Note what a recipe has that is in none of its snippets; returns how many parts of instructions that are."""
        folder, changed = f"recipes/{name}", 0
        for path in self._checkout.below(folder):
            self._checkout.account(path)
            if path == f"{folder}/Containerfile":
                changed = self._instructions(path, one)
            elif self._hash(path) not in self._copies:
                self._made.note(path, self._difference(path, one))
        return changed

    def _instructions(self, path: str, one: ForeignTag | None) -> int:
        given, changed = _given(one), 0
        labels = list[tuple[int, str]]()
        variables = self._known(one, given)
        # The shared snippet has a label of each; those of an IDE or a bundle are told with these.
        beside = self._known(one, given, "snippets/bundles/", "snippets/ides/")
        steps = instructions(self._checkout.text(path))
        alone = sum(step.name == "FROM" for step in steps) == 1  # then `why_another` says what is to be said of it
        for step in steps:
            for line, part in step.parts():
                if step.name == "LABEL" and _put_in(part, given) not in beside:
                    labels.append((line, part))
                elif _put_in(part, given) not in variables and not (one and alone and step.name == "FROM"):
                    changed += 1
                    self._made.note(f"{path}:{line}", f"was left out, for it is in none of the snippets: {part}")
        self._tell_labels(path, labels)
        return changed

    def _tell_labels(self, path: str, labels: Iterable[tuple[int, str]]) -> None:
        """Note the labels of a recipe: each once for all recipes, and a few in a line where they have other values."""
        others = list[tuple[int, str]]()
        for line, part in labels:
            key = part.removeprefix("LABEL ").partition("=")[0]
            if self._labels.setdefault(key, part) != part:
                others.append((line, part.removeprefix("LABEL ")))
            elif key not in self._told:
                self._told.add(key)
                self._made.note(f"{path}:{line}", f"was left out, as in all recipes that have it: {part}")
        for at in range(0, len(others), _TOLD):
            some_of_them = others[at : at + _TOLD]
            differences = "; ".join(f"{part} (line {line})" for line, part in some_of_them)
            self._made.note(
                f"{path}:{some_of_them[0][0]}", f"labels with values of its own were left out: {differences}"
            )

    def _known(self, one: ForeignTag | None, given: Mapping[str, str], *below: str) -> set[str]:
        """The names in the snippets of a recipe, or all of them where nobody knows which those are."""
        return {
            _put_in(part, given)
            for path, parts in self._snippets.items()
            if path.startswith(below or "") and (one is None or _is_of(path, one))
            for part in parts
        }

    def _difference(self, path: str, one: ForeignTag | None) -> str:
        """The note about a file that no snippet has."""
        ours = ""
        if one and re.fullmatch(r"requirements.*\.txt", path.rpartition("/")[2]):
            folder = next((p for p in self._checkout.folders("snippets/bundles") if p.endswith(f"-{one.bundle}")), "")
            ours = self._checkout.text(f"snippets/bundles/{folder}/{one.python}/{path.rpartition('/')[2]}")
        theirs, here = _pins(self._checkout.text(path)), _pins(ours)
        if not here:
            return "was left out: it is in no snippet"
        names = sorted(name for name in theirs.keys() | here.keys() if theirs.get(name) != here.get(name))
        moved = some((f"{name} {theirs.get(name, 'none')} → {here.get(name, 'none')}" for name in names), _TOLD)
        return f"differs from its bundle's, whose versions came over: {moved or 'in other words than versions'}"


def _is_of(path: str, one: ForeignTag) -> bool:
    """Whether a snippet is one that a recipe was made of."""
    parts = path.split("/")[1:]
    if len(parts) < 3:
        return True
    return parts[0] == "base" or parts[1].partition("-")[2] in {"bundles": (one.bundle,), "ides": (one.ide,)}.get(
        parts[0], ()
    )


def _given(one: ForeignTag | None) -> dict[str, str]:
    """The variables that their program puts into snippets."""
    if one is None:
        return {"CUDA": ""}
    return {
        "PYTHON_FOLDER": f"python{python_version(one.python)}",
        "RELEASE": one.release,
        "CUDA": "cuda-" if one.cuda else "",
    }


def _put_in(text: str, given: Mapping[str, str]) -> str:
    """A part of an instruction with these variables, and single blanks."""
    for name, value in given.items():
        text = re.sub(rf"\$(?:\{{{name}\}}|{name}\b)", value, text)
    return " ".join(text.split())


def _pins(text: str) -> dict[str, str]:
    return {name.lower(): version for name, version in _PIN.findall(text)}


def newest(names: Iterable[str], lines: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Recipes of a profile that a newer one has, too: its folder and that of the newer one."""
    last: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name.partition("_")[2]):
        if before := last.get(lines[name]):
            yield before, name
        last[lines[name]] = name
