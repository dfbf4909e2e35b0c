"""Their bases and CUDA layers, in whose place Refit's own are: what those may lack."""

from __future__ import annotations

from pathlib import Path

from flows.authoring.importing.checkout import HOME, containerfiles, lines_in, names_in, text_in
from flows.authoring.importing.containerfile import instructions, places
from flows.authoring.importing.report import Adoption
from flows.catalog.model import Catalog


def tell_of_bases(checkout: Path, made: Adoption, own: Catalog) -> None:
    """Note what stands in their bases and CUDA layers, and the labels of their images."""
    for folder, what in (
        ("base", "Refit's own bases take its place; add packages that you miss to base/<os>/os-packages.txt"),
        ("cuda-layer", "was left out: images with CUDA stand on Refit's own layers"),
    ):
        if (checkout / folder).is_dir():
            made.note(folder, what)
    if (checkout / "base").is_dir():
        made.note("base", f"there, a person may write to /opt/app-root; here, what they install goes to {HOME}/.local")
    _labels(checkout, made)
    for layer in sorted({file.parent for file in containerfiles(checkout.glob("cuda-layer/**/*"))}):
        each_instruction(layer, layer.relative_to(checkout).as_posix(), "was left out", made)
    for theirs in sorted(path for path in checkout.glob("base/*") if path.is_dir()):
        _base(theirs, f"base/{theirs.name}", own, made)


def _labels(checkout: Path, made: Adoption) -> None:
    """Note the labels of their images, each once."""
    known: set[str] = set()
    for file in containerfiles(checkout.glob("recipes/*/*")):
        for line, text in instructions(text_in(file)):
            if text.upper().startswith("LABEL ") and (name := text[6:].partition("=")[0].strip()) not in known:
                known.add(name)
                made.note(f"{file.relative_to(checkout).as_posix()}:{line}", f"was left out: {text}")


def _base(folder: Path, place: str, own: Catalog, made: Adoption) -> None:
    """Note each package, instruction and file that Refit's base of that name may lack."""
    base, listed = own.bases.get(folder.name), folder / "os-packages.txt"
    missing = [name for name in names_in(listed) if not base or name not in base.packages]
    for line, package in places(lines_in(listed), missing):
        made.note(f"{place}/{listed.name}:{line}", f"{package} is not in Refit's {folder.name}")
    each_instruction(folder, place, f"may not be in Refit's {folder.name}", made)
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != listed):
        if file.name not in ("Containerfile", "Dockerfile"):
            made.note(f"{place}/{file.relative_to(folder).as_posix()}", "was left out: Refit's own base is there")


def each_instruction(folder: Path, place: str, what: str, made: Adoption) -> None:
    """A note of each instruction of the snippets and Containerfiles in a folder."""
    for file in sorted(path for path in folder.glob("*") if path.is_file()):
        if file.suffix == ".snippet" or file.name in ("Containerfile", "Dockerfile"):
            for line, instruction in instructions(text_in(file)):
                made.note(f"{place}/{file.name}:{line}", f"{what}: {instruction}")
