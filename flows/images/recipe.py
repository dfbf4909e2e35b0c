"""From a profile to the stages of its image: recipes are read, held against their locks, and rendered.

Every stage's text is a Containerfile without its FROM. Labels, dates and the name of the release are in none.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError

from flows.catalog.model import Base, Catalog, Profile, python_version
from flows.documents import Mistake, Mistakes
from flows.images.stages import Kind, Stage
from flows.locks import python as python_locks

Resolve = Callable[[Base], tuple[str, ...]]

REQUIREMENTS = "requirements.txt"  # in the build context of any stage that installs Python packages


@dataclass(frozen=True)
class Templates:
    """All templates of a catalog: path below its root → text."""

    root: Path
    texts: Mapping[str, str]

    def render(self, name: str, **variables: object) -> str:
        """The text that a template makes of the variables.

        Raises:
            Mistakes: the template, or one that it includes, has a mistake; with its file and line.
        """
        environment = Environment(
            loader=FunctionLoader(self._load),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        try:
            return environment.get_template(name).render(variables).strip() + "\n"
        except TemplateError as error:
            raise Mistakes([self._mistake(error)]) from error

    def _load(self, name: str) -> tuple[str, str, None] | None:
        return (self.texts[name], str(self.root / name), None) if name in self.texts else None

    def _mistake(self, error: TemplateError) -> Mistake:
        what = f"there is no template {error.name!r}" if isinstance(error, TemplateNotFound) else str(error.message)
        if isinstance(error, TemplateSyntaxError):
            return Mistake(Path(error.filename or self.root), error.lineno, what)
        ours = {str(self.root / name) for name in self.texts}
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
        return (
            Mistake(Path(frames[-1].filename), frames[-1].lineno or 0, what) if frames else Mistake(self.root, 0, what)
        )


def chain(profile: Profile, catalog: Catalog, resolve: Resolve) -> tuple[Stage, ...]:
    """The stages of a profile's image, base first.

    Args:
        profile: what is wanted.
        catalog: where its recipes come from.
        resolve: gives the exact system packages of a base as `name=version`. Where a bundle has system packages, it is
            asked again with a base that has these as well.

    Raises:
        Mistakes: a template has a mistake, or the bundle has to be locked again.
        UnknownName: the lock lacks the category of the IDE.
    """
    python_locks.verify(profile.bundle.pythons[profile.python])
    templates = read_templates(catalog.root)
    stages = [foundation(profile.base, profile.python, catalog, resolve(profile.base))]
    if system := _additional(profile, resolve):
        stages.append(_system_stage(profile, templates, stages[0], system))
    stages.append(_python_stage(profile, templates, stages[-1]))
    return (*stages, _ide_stage(profile, templates, stages[-1]))


def foundation(base: Base, python: str, catalog: Catalog, system: tuple[str, ...]) -> Stage:
    """The stage that everything on an operating system and its Python stands on."""
    text = read_templates(catalog.root).render(
        _path(catalog.root, base.folder / "base.snippet.j2"), **_base_variables(base, python), system=system
    )
    files = read_files(base.folder / "files")
    name = f"base-{base.name}-{python}"
    return Stage(name, Kind.bootstrap, None, text, files, system, suite=base.config.suite)


def _additional(profile: Profile, resolve: Resolve) -> tuple[str, ...]:
    """The exact system packages that a bundle has on top of its base's."""
    if not profile.bundle.packages:
        return ()
    together = replace(profile.base, packages=(*profile.base.packages, *profile.bundle.packages))
    return tuple(sorted(set(resolve(together)) - set(resolve(profile.base))))


def _system_stage(profile: Profile, templates: Templates, parent: Stage, system: tuple[str, ...]) -> Stage:
    text = templates.render("snippets/os-packages.snippet.j2", **_variables(profile), system=system)
    name = f"{profile.bundle.name}-os-{profile.base.name}-{profile.python}"
    return Stage(name, Kind.instructions, parent.name, text, system=system)


def _python_stage(profile: Profile, templates: Templates, parent: Stage) -> Stage:
    requirements = _requirements(profile, python_locks.FIRST_CATEGORY)
    text = templates.render("snippets/python.snippet.j2", **_variables(profile))
    custom = _path(templates.root, profile.bundle.folder / "custom" / "custom.snippet.j2")
    if custom in templates.texts:
        text += templates.render(custom, **_variables(profile))
    return Stage(
        name=f"{profile.bundle.name}-{profile.base.name}-{profile.python}",
        kind=Kind.instructions,
        parent=parent.name,
        text=text,
        files={REQUIREMENTS: _as_file(requirements)},
        requirements=requirements,
    )


def _ide_stage(profile: Profile, templates: Templates, parent: Stage) -> Stage:
    ide = profile.ide
    requirements = _requirements(profile, ide.config.category) if ide.config.category else ()
    variables = {**_variables(profile), "ide": ide.name, "port": ide.config.access.port}
    own = {REQUIREMENTS: _as_file(requirements)} if requirements else {}
    return Stage(
        name=profile.stem,
        kind=Kind.instructions,
        parent=parent.name,
        text=templates.render(_path(templates.root, ide.folder / f"{ide.name}.snippet.j2"), **variables),
        files={**read_files(ide.folder / "files"), **own},
        requirements=requirements,
    )


def _base_variables(base: Base, python: str) -> dict[str, object]:
    return {
        "os": base.name,
        "family": base.config.family,
        "suite": base.config.suite,
        "python": python,
        "python_version": python_version(python),
    }


def _variables(profile: Profile) -> dict[str, object]:
    return {**_base_variables(profile.base, profile.python), "bundle": profile.bundle.name}


def _path(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()


def read_templates(root: Path) -> Templates:
    """All templates of the catalog below `root`."""
    folders = [root / kind for kind in ("base", "bundles", "ides", "snippets")]
    files = [file for folder in folders for file in sorted(folder.rglob("*.j2"))]
    return Templates(root, {_path(root, file): file.read_text(encoding="utf-8") for file in files})


def read_files(folder: Path) -> dict[str, bytes]:
    """A recipe's files by their path in the build context: `files/…`."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {_path(folder.parent, file): file.read_bytes() for file in files}


def _requirements(profile: Profile, category: str) -> tuple[str, ...]:
    return python_locks.read(profile.bundle.pythons[profile.python], (category,))


def _as_file(requirements: tuple[str, ...]) -> bytes:
    return "".join(f"{line}\n" for line in requirements).encode()
