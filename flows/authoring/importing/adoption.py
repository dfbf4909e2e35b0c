"""Make a catalog of a checkout of workbench-images, and say what of it could not be carried over.

Its bundles come along with the versions that they are locked to. Bases, CUDA layers and those IDEs that Refit has under
the same name are Refit's own. A recipe is in the release only if its profile can be assembled, and only with the CUDA
that it had, or one that a person has chosen. Nothing is left out without a word.
"""

from __future__ import annotations

from pathlib import Path

from flows.authoring.importing.bases import tell_of_bases
from flows.authoring.importing.bundles import drop_refused, lend_python, take_bundles
from flows.authoring.importing.checkout import Checkout
from flows.authoring.importing.ides import fitting, take_ides
from flows.authoring.importing.recipes import Recipes, write_release
from flows.authoring.importing.report import Adoption
from flows.catalog import tree
from flows.catalog.model import Catalog
from flows.core.errors import RefitError


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
    if cuda and cuda not in (levels := own.cuda.levels if own.cuda else {}):
        raise RefitError(f"Refit's CUDA has no level {cuda!r}.", hint=f"name one of {', '.join(levels)}.")
    adoption = Adoption(target)
    theirs = Checkout(checkout, adoption)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RefitError(f"{target} is there already, and not empty.", hint="name a folder that isn't there yet.")
    try:
        _adopt(theirs, target, own, cuda, adoption)
        adoption.write_report()
    except OSError as error:
        hint = "name another folder."
        raise RefitError(f"The catalog can't be made in {target}.", why=str(error), hint=hint) from None
    return adoption


def _adopt(checkout: Checkout, target: Path, own: Catalog, cuda: str, adoption: Adoption) -> None:
    for part in ("base", "ides", "snippets"):
        tree.copy(own.root / part, target / part, own.root)
    for part in ("bundles", "releases"):
        (target / part).mkdir()
    ides = dict(take_ides(checkout, adoption, own))
    bundles = dict(take_bundles(checkout, adoption))
    while drop_refused(checkout, bundles, adoption):
        pass
    lend_python(checkout, bundles, adoption)
    ides = fitting(ides, bundles, adoption, own)
    tell_of_bases(checkout, adoption, own)
    write_release(Recipes(checkout, own, ides, bundles, cuda, adoption), adoption)
    checkout.tell_the_rest()
