"""A person's bundle in a catalog with the recipes that it stands on, and with its one profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.authoring.own import recipe
from flows.catalog import load, tag, tree
from flows.catalog.model import Bundle, Catalog, Profile
from flows.core import documents
from flows.core.documents import Mistake, Mistakes
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.images.recipe_variables import template_variables
from flows.images.rendering.templates import read_templates

_FOLDER = "1000000-{}"  # last in menus
_ALIKE = str.maketrans("01i5", "olls")
_PARTS = ("base", "bundles", "ides", "snippets")


@dataclass(frozen=True)
class Wish:
    """A profile that a person wants: the name of its bundle, whose it is, what opens, on which system, of a release."""

    name: str
    owner: str
    ide: str
    os: str
    release: str


def check_name(name: str, shipped: Catalog) -> str:
    """`name`, if a bundle of a person's own may be called so.

    Raises:
        RefitError: no bundle may, or one of the catalog is.
    """
    return _unlike(name, shipped, lambda text: text, "a profile of one's own can't be called like it")


def check_new_name(name: str, shipped: Catalog) -> str:
    """As `check_name`, for a name that nobody has yet: it may not look like one of the catalog either.

    Names that people have had before stay theirs, also where the catalog has a similar one by now.
    """
    why = "a profile of one's own can't be called like it, nor so that it looks the same"
    return _unlike(check_name(name, shipped), shipped, _as_seen, why)


def looks_like(name: str, shipped: Catalog) -> str:
    """The bundle, IDE or system of the catalog that people may take a name for, in words; empty: none."""
    return _there(name, shipped, _as_seen)


def _unlike(name: str, shipped: Catalog, seen: Callable[[str], str], why: str) -> str:
    if not tag.is_name(name):
        raise RefitError(f"{name!r} can't be the name of a bundle.", hint="take a-z and 0-9, 30 at most: `--as NAME`.")
    if there := _there(name, shipped, seen):
        raise RefitError(f"The catalog has {there}: {why}.", hint="choose another name: `--as NAME`.")
    return name


def _there(name: str, shipped: Catalog, seen: Callable[[str], str]) -> str:
    """The first of the catalog's names that is seen as this one, in words; empty: none is."""
    retired = {stem for release in shipped.releases.values() for stem in release.retired}  # they lead to successors
    former = {part for stem in retired for part in stem.removeprefix("cuda-").split("-")[1:2]}
    taken: dict[str, Iterable[str]] = {"a bundle": shipped.bundles, "a retired bundle": former}
    taken |= {"an IDE": shipped.ides, "an operating system": shipped.bases}
    every = ((kind, other) for kind, names in taken.items() for other in names)
    return next((f"{kind} {other!r}" for kind, other in every if seen(other) == seen(name)), "")


def _as_seen(name: str) -> str:
    """A name of small letters and digits, with one spelling for those that people take for each other."""
    return name.translate(_ALIKE).replace("rn", "m").replace("vv", "w")


@contextmanager
def composed(
    wish: Wish, files: Mapping[str, bytes], settings: Settings, *, new: bool = False
) -> Iterator[tuple[Catalog, Profile]]:
    """A catalog with the person's bundle, in a folder that is there inside the `with` block; and its profile.

    Args:
        wish: the bundle's name, whose it is, and its profile.
        files: path below the bundle's folder → content.
        settings: say where the catalog is.
        new: nobody has that name yet, so that it may not look like one of the catalog.

    Raises:
        Mistakes: in the bundle, by its own paths.
        RefitError: the name is one of the catalog's, or what it stands on isn't there.
    """
    if wrong := list(recipe.mistakes(files)):
        raise Mistakes(wrong)
    if not tag.is_release(wish.release):  # it becomes the name of a file
        raise RefitError(f"{wish.release!r} can't be the name of a release.", hint="take 2026a, for instance.")
    shipped = load.load_catalog(settings.catalog)
    (check_new_name if new else check_name)(wish.name, shipped)
    with TemporaryDirectory(prefix="own-", dir=settings.folder("running")) as folder:
        root = Path(folder) / "catalog"
        own = root / "bundles" / _FOLDER.format(wish.name)
        _copy(wish, files, shipped, root)
        _write(own, files)
        try:
            catalog, profile = _loaded(wish, own, root, settings)
            _check_instructions(root, own, profile)
        except Mistakes as error:
            raise Mistakes(_as_own(error, own)) from None
        yield catalog, profile


def _copy(wish: Wish, files: Mapping[str, bytes], shipped: Catalog, root: Path) -> None:
    """The catalog's recipes, whose rules name each other, without its releases."""
    if wish.ide not in shipped.ides:
        raise UnknownName("IDE", wish.ide, shipped.ides)
    extended = files["bundle.yaml"].decode().partition("extends:")[2].split()[0]
    if extended not in shipped.bundles:
        hint = f"known: {', '.join(shipped.bundles)}"
        raise Mistakes([Mistake(Path("bundle.yaml"), 1, f"there is no bundle {extended!r}", hint)])
    for part in _PARTS:
        tree.copy(shipped.root / part, root / part, shipped.root)
    (root / "releases").mkdir()


def _write(own: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        (own / path).write_bytes(content)


def _loaded(wish: Wish, own: Path, root: Path, settings: Settings) -> tuple[Catalog, Profile]:
    """The catalog with the release that has this one profile, whose bundle is its owner's."""
    pythons = sorted(path.parent.name for path in own.glob("py*/Pipfile"))
    choice = {"ide": wish.ide, "bundle": wish.name, "os": wish.os, "python": pythons[-1]}
    choice["size_budget"] = f"{settings.personal_builds.image_gb:g} GB"
    file = root / "releases" / f"{wish.release}.yaml"
    file.write_text(documents.dump({"release": wish.release, "profiles": [choice]}), encoding="utf-8")
    catalog = load.load_catalog(root)

    def owned(bundle: Bundle) -> Bundle:
        return replace(bundle, owner=wish.owner if bundle.name == wish.name else "")

    [profile] = catalog.releases[wish.release].profiles
    profile = replace(profile, bundle=owned(profile.bundle))
    release = replace(catalog.releases[wish.release], profiles=(profile,))
    bundles = {name: owned(bundle) for name, bundle in catalog.bundles.items()}
    return replace(catalog, bundles=bundles, releases={wish.release: release}), profile


def _check_instructions(root: Path, own: Path, profile: Profile) -> None:
    """Hold the text that the snippet gives against the rules; the build renders the same from the same."""
    if not (own / recipe.CUSTOM).exists():
        return
    template = (own / recipe.CUSTOM).relative_to(root).as_posix()
    text = read_templates(root).render(template, **template_variables(profile))
    if wrong := list(recipe.instructions(text)):
        raise Mistakes([Mistake(own / mistake.file, mistake.line, mistake.what, mistake.hint) for mistake in wrong])


def _as_own(error: Mistakes, own: Path) -> Iterator[Mistake]:
    """The same mistakes by the paths in the person's folder."""
    for mistake in error.mistakes:
        inside = mistake.file.relative_to(own) if mistake.file.is_relative_to(own) else mistake.file
        yield replace(
            mistake, file=inside, what=mistake.what.replace(f"{own}/", ""), hint=mistake.hint.replace(f"{own}/", "")
        )
