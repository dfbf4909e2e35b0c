"""From a profile to the stages of its image: recipes are read, held against their locks, and rendered.

Every stage's text is a Containerfile without its FROM. Labels, dates and the name of the release are in none.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError

from flows.catalog.model import Base, Catalog, Profile, python_version
from flows.documents import Mistake, Mistakes
from flows.images.configuration import configured, instructions
from flows.images.stages import Kind, Stage
from flows.locks import python as python_locks
from flows.locks import system as system_locks
from flows.locks.pipfile import FIRST_CATEGORY

Resolve = Callable[[Base], tuple[str, ...]]

REQUIREMENTS = "requirements.txt"  # in the build context of any stage that installs Python packages
PIP = "python3-pip-whl"  # Debian's package of the pip that a base has
BASES = "snippets/base"  # what bases share
ENVIRONMENT = "/opt/app-root"  # where all Python packages are


@dataclass(frozen=True)
class Templates:
    """All templates of a catalog: path below its root → text."""

    root: Path
    texts: Mapping[str, str]

    @cached_property
    def _environment(self) -> Environment:
        """Compiles each template once."""
        loader = FunctionLoader(self._load)
        return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

    def render(self, name: str, **variables: object) -> str:
        """The text that a template makes of the variables.

        Raises:
            Mistakes: the template, or one that it includes, has a mistake; with its file and line.
        """
        try:
            return self._environment.get_template(name).render(variables).strip() + "\n"
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


class Assembler:
    """Assembles the stages of a catalog's profiles; what profiles share is read and rendered once.

    Args:
        catalog: where the recipes come from.
        resolve: gives the exact system packages of a base as `name=version`. Where a bundle has system packages, it is
            asked again with a base that has these as well.
        installer: what installs Python packages, `uv` or `pip`.
    """

    def __init__(self, catalog: Catalog, resolve: Resolve, installer: str = "uv") -> None:
        self._root, self._installer = catalog.root, installer
        self._templates = read_templates(catalog.root)
        self._resolving, self._resolved = resolve, dict[tuple[str, ...], tuple[str, ...]]()
        self._verify, self._lock = cache(python_locks.verify), cache(python_locks.read)
        self._made: dict[tuple[str, str], Stage] = {}

    def chain(self, profile: Profile) -> tuple[Stage, ...]:
        """The stages of a profile's image, base first.

        Raises:
            Mistakes: a template has a mistake, or the bundle has to be locked again.
            UnknownName: the lock lacks the category of the IDE.
        """
        self._verify(profile.bundle.pythons[profile.python])
        stages = [self.foundation(profile.base, profile.python)]
        for step in (self._system, self._python, self._custom, self._ide_packages, self._ide):
            if stage := step(profile, stages[-1]):
                stages.append(stage)
        return tuple(stages)

    def foundation(self, base: Base, python: str) -> Stage:
        """The stage that everything on an operating system and its Python stands on."""

        def make(name: str) -> Stage:
            system = self._resolve(_with_python(base, python))
            template = self._path(base.folder / "base.snippet.j2")
            text = self._templates.render(template, **_base_variables(base, python), system=system)
            files = self._common_files(base, text) | read_files(base.folder / "files")
            kind = Kind.instructions if base.config.image else Kind.bootstrap
            suite, family, image = base.config.suite, base.config.family, base.config.image
            return Stage(name, kind, None, text, files, system, suite=suite, family=family, image=image)

        return self._once("base", f"base-{base.name}-{python}", make)

    def _common_files(self, base: Base, text: str) -> dict[str, bytes]:
        """Of the files that bases share, and those that say where their packages come from, what a text names."""
        common = {**read_files(self._root / BASES / "files"), **system_locks.sources(base)}
        return {path: content for path, content in common.items() if path in text}

    def _system(self, profile: Profile, parent: Stage) -> Stage | None:
        """The bundle's system packages on top of the base's."""
        if not (system := self._additional(profile)):
            return None

        def make(name: str) -> Stage:
            text = self._templates.render("snippets/os-packages.snippet.j2", **_variables(profile), system=system)
            files = self._common_files(profile.base, text)
            suite, family = profile.base.config.suite, profile.base.config.family
            return Stage(name, Kind.instructions, parent.name, text, files, system, suite=suite, family=family)

        return self._once("system", f"{profile.bundle.name}-os-{profile.base.name}-{profile.python}", make)

    def _python(self, profile: Profile, parent: Stage) -> Stage:
        """The bundle's Python packages."""

        def make(name: str) -> Stage:
            requirements = self._requirements(profile, FIRST_CATEGORY)
            return self._packages(profile, name, parent, "environment", requirements)

        return self._once("python", f"{profile.bundle.name}-{profile.base.name}-{profile.python}", make)

    def _custom(self, profile: Profile, parent: Stage) -> Stage | None:
        """The bundle's own instructions."""
        template = self._path(profile.bundle.folder / "custom" / "custom.snippet.j2")
        if template not in self._templates.texts:
            return None

        def make(name: str) -> Stage:
            text = self._templates.render(template, **_variables(profile))
            return Stage(name, Kind.instructions, parent.name, text)

        return self._once("custom", f"{profile.bundle.name}-custom-{profile.base.name}-{profile.python}", make)

    def _ide_packages(self, profile: Profile, parent: Stage) -> Stage | None:
        """The Python packages that the IDE needs, locked together with the bundle's."""
        category = profile.ide.config.category
        if not category:
            return None

        def make(name: str) -> Stage:
            stage = self._packages(profile, name, parent, "packages", self._requirements(profile, category))
            # What the bundle's own instructions have left in the environment can't be told.
            return stage if parent.kind is Kind.closed else replace(stage, kind=Kind.instructions, abi={}, writes=())

        return self._once("packages", f"{profile.stem}-packages", make)

    def _ide(self, profile: Profile, parent: Stage) -> Stage:
        """What the IDE itself brings: programs, files, and how it starts."""
        ide = profile.ide

        def make(name: str) -> Stage:
            variables = {**_variables(profile), "ide": ide.name, "port": ide.config.access.port}
            text = self._templates.render(self._path(ide.folder / f"{ide.name}.snippet.j2"), **variables)
            kind = Kind.closed if _has_no_programs(text) else Kind.instructions
            return Stage(name, kind, parent.name, text, read_files(ide.folder / "files"))

        return self._once("ide", profile.stem, make)

    def _packages(
        self, profile: Profile, name: str, parent: Stage, snippet: str, requirements: tuple[str, ...]
    ) -> Stage:
        return Stage(
            name,
            Kind.closed,
            parent.name,
            self._templates.render(f"snippets/{snippet}.snippet.j2", **_variables(profile), installer=self._installer),
            files={REQUIREMENTS: _as_file(requirements)},
            requirements=requirements,
            abi=self._abi(profile),
            writes=(ENVIRONMENT,),
        )

    def _abi(self, profile: Profile) -> Mapping[str, str]:
        """What installed packages depend on of what is below them; pip is the base's own."""
        abi = {"os": profile.base.name, "suite": profile.base.config.suite, "python": profile.python}
        if self._installer == "pip":
            system = self._resolve(_with_python(profile.base, profile.python))
            abi["pip"] = next((p for p in system if p.startswith(f"{PIP}=")), "")
        return abi

    def _resolve(self, base: Base) -> tuple[str, ...]:
        asked = (base.name, *base.packages)
        if asked not in self._resolved:
            self._resolved[asked] = self._resolving(base)
        return self._resolved[asked]

    def _once(self, step: str, name: str, make: Callable[[str], Stage]) -> Stage:
        if (step, name) not in self._made:
            self._made[step, name] = make(name)
        return self._made[step, name]

    def _additional(self, profile: Profile) -> tuple[str, ...]:
        """The exact system packages that a bundle has and its base lacks."""
        if not profile.bundle.packages:
            return ()
        base = _with_python(profile.base, profile.python)
        together = replace(base, packages=(*base.packages, *profile.bundle.packages))
        return tuple(sorted(set(self._resolve(together)) - set(self._resolve(base))))

    def _requirements(self, profile: Profile, category: str) -> tuple[str, ...]:
        return self._lock(profile.bundle.pythons[profile.python], (category,))

    def _path(self, file: Path) -> str:
        return _path(self._root, file)


def _has_no_programs(text: str) -> bool:
    """Whether a stage only copies files and configures, all of it in ways that can be done again without a build."""
    try:
        configured({"rootfs": {"diff_ids": []}}, text, None, origin="")
        return all(step.name != "RUN" for step in instructions(text))
    except ValueError:  # what buildah makes of it isn't known for sure
        return False


def _with_python(base: Base, python: str) -> Base:
    """A base together with what one of its Pythons needs."""
    return replace(base, packages=(*base.packages, *base.config.python_packages.get(python, ())))


def _base_variables(base: Base, python: str) -> dict[str, object]:
    return {
        "os": base.name,
        "family": base.config.family,
        "suite": base.config.suite,
        "repositories": base.config.repositories,
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


def _as_file(requirements: tuple[str, ...]) -> bytes:
    return "".join(f"{line}\n" for line in requirements).encode()
