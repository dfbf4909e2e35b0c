"""Parts of a checkout of workbench-images, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flows.authoring.importing.report import Adoption

PIPFILE = """\
[[source]]
url = "https://pypi.org/simple"
verify_ssl = true
name = "pypi"

[dev-packages]

[packages]
six = "~=1.16" # a comment

[requires]
python_version = "3.9"
"""
# As pipenv writes it for that Pipfile.
LOCK = """\
{"_meta": {"hash": {"sha256": "%s"}, "pipfile-spec": 6, "requires": {"python_version": "3.9"},
 "sources": [{"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": true}]},
 "default": {"six": {"hashes": ["sha256:aa"], "index": "pypi", "version": "==1.16.0"}}, "develop": {}}
"""
DIGEST = "ca429625ea49d54e94a162c6bdea0da403e2746e8e101cfc5b1c2def2e558f19"


def write(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def begins(recipe: str) -> str:
    """The FROM of a recipe, as their program writes it."""
    *_, system, python = recipe.partition("_")[0].split("-")
    cuda, level = ("cuda", "-runtime-cudnn") if recipe.startswith("cuda-") else ("base", "")
    return f"FROM quay.io/x/workbench-images:{cuda}-{system}-{python}{level}_2023c_latest\n"


RECIPE = "runtime-minimal-c9s-py39_2023c_20230925"
STUDIO = RECIPE.replace("runtime", "studio")  # its IDE is none of Refit's
Import = Callable[..., Adoption]


def why(made: Adoption, name: str) -> str:
    [recipe] = [recipe for recipe in made.recipes if recipe.name.startswith(name)]
    return recipe.why


def said(made: Adoption, place: str) -> list[str]:
    return [note.partition(": ")[2] for note in made.notes if note.partition(": ")[0] == place]
