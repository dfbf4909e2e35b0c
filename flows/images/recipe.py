"""From a profile to the stages of its image: recipes are read, held against their locks, and rendered.

Every stage's text is a Containerfile without its FROM. Labels, dates and the name of the release are in none.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from flows.catalog import npm
from flows.catalog.model import Base, Catalog, CudaConfig, Profile
from flows.catalog.tree import is_shipped, read_files
from flows.core.documents import bounds
from flows.core.errors import RefitError
from flows.images.grafting.configuration import has_no_programs
from flows.images.recipe_variables import (
    as_file,
    base_variables,
    library_name,
    lineage,
    relative_path,
    template_variables,
    with_packages,
    with_python,
)
from flows.images.rendering.templates import Templates, read_templates
from flows.images.stages import CUDA, IDE, Kind, Stage, of_a_person
from flows.locks import python_lockfile as python_locks
from flows.locks import system as system_locks
from flows.locks.pipfile import FIRST_CATEGORY, read_pipfile
from flows.locks.source_builds import BUILDER, Built

Resolve = Callable[[Base], tuple[str, ...]]
Step = Callable[[Profile, Stage], Stage | None]

REQUIREMENTS = "requirements.txt"  # in the build context of any stage that installs Python packages
SOURCES = "sources.txt"  # in that of a stage that builds Python packages
PIP = "python3-pip-whl"  # Debian's package of the pip that a base has
BASES = "snippets/base"  # what bases share
CUDA_RECIPE = "base/cuda"
CUDA_REPOSITORY = "cuda"  # NVIDIA's, among those of a base of rpm
WEB = "snippets/web/files"  # what IDEs share
ENVIRONMENT = "/opt/app-root"  # where all Python packages are
NODE = "snippets/node/requirements.txt"  # the Node that installs npm packages, as a Python package


class Assembler:
    """Assembles the stages of a catalog's profiles; parts that profiles share are read and rendered once.

    Args:
        catalog: where the recipes come from.
        resolve: gives the exact system packages of a base as `name=version`. Where a bundle has system packages, it is
            asked again with a base that has these as well.
        installer: the installer of Python packages, `uv` or `pip`.
        templates: the catalog's templates, where they are read already.
    """

    def __init__(
        self, catalog: Catalog, resolve: Resolve, installer: str = "uv", templates: Templates | None = None
    ) -> None:
        self._root, self._installer = catalog.root, installer
        self._cuda_config = catalog.cuda.on(platform.machine()) if catalog.cuda else None
        self._templates = templates or read_templates(catalog.root)
        self._resolving, self._resolved = resolve, dict[tuple[str, ...], tuple[str, ...]]()
        self._verify, self._lock, self._pipfile = (
            cache(python_locks.verify),
            cache(python_locks.read),
            cache(read_pipfile),
        )
        # Stages of many profiles have the same files and instructions.
        self._files = cache(partial(read_files, root=catalog.root))
        self._has_no_programs = cache(has_no_programs)
        self._made: dict[tuple[str, str], Stage] = {}

    def chain(self, profile: Profile) -> tuple[Stage, ...]:
        """The stages of a profile's image, base first.

        Raises:
            Mistakes: a template has a mistake, or the bundle has to be locked again.
            UnknownName: the lock lacks the category of the IDE.
        """
        self._verify(profile.bundle.pythons[profile.python])
        stages = [self.foundation(profile.base, profile.python)]
        steps: tuple[Step, ...] = (
            self._system,
            self._python,
            self._custom,
            self._ide_packages,
            self._cuda_system,
            *(partial(self._cuda, level=level) for level in self._levels(profile)),
            self._ide_system,
            self._npm,
            self._ide,
        )
        for step in steps:
            if stage := step(profile, stages[-1]):
                stages.append(stage)
        return of_a_person(stages, profile.bundle.owner)

    def system_sets(self, profile: Profile) -> Iterator[tuple[str, Base]]:
        """The sets of system packages that a profile's stages are made of, by stage; each is one more base.

        Raises:
            RefitError: its Python packages, on which some depend, can't be read.
        """
        base = with_python(profile.base, profile.python)
        yield f"base-{base.name}-{profile.python}", base
        for name, packages in (
            (f"{profile.bundle.name}-os-{base.name}-{profile.python}", profile.bundle.packages),
            (f"{profile.stem}-cuda-os", self._cuda_packages(profile)),
            (f"{profile.stem}-os", profile.ide.packages),
        ):
            if packages:
                base = with_packages(base, packages)
                yield name, base

    def foundation(self, base: Base, python: str) -> Stage:
        """The stage that everything on an operating system and its Python stands on."""

        def make(name: str) -> Stage:
            system = self._resolve(with_python(base, python))
            template = self._path(base.folder / "base.snippet.j2")
            text = self._templates.render(template, **base_variables(base, python), system=system)
            files = self._common_files(base, text) | self._files(base.folder / "files")
            kind = Kind.instructions if base.config.image else Kind.bootstrap
            suite, family, image = base.config.suite, base.config.family, base.config.image
            return Stage(name, kind, None, text, files, system, suite=suite, family=family, image=image)

        return self._once("base", f"base-{base.name}-{python}", make)

    def _common_files(self, base: Base, text: str) -> dict[str, bytes]:
        """Of the files that bases share, and those that say where their packages come from, what a text names."""
        common = {**self._files(self._root / BASES / "files"), **system_locks.sources(base)}
        return {path: content for path, content in common.items() if path in text}

    def _system(self, profile: Profile, parent: Stage) -> Stage | None:
        """The bundle's system packages on top of the base's."""
        base = with_python(profile.base, profile.python)
        name = f"{profile.bundle.name}-os-{profile.base.name}-{profile.python}"
        return self._more_system(profile, parent, name, base, profile.bundle.packages)

    def _ide_system(self, profile: Profile, parent: Stage) -> Stage | None:
        """The IDE's system packages on top of the base's and the bundle's."""
        base = with_packages(
            with_python(profile.base, profile.python), profile.bundle.packages + self._cuda_packages(profile)
        )
        return self._more_system(profile, parent, f"{profile.stem}-os", base, profile.ide.packages)

    def _cuda_system(self, profile: Profile, parent: Stage) -> Stage | None:
        """The system packages that CUDA needs on top of the base's and the bundle's: compilers."""
        base = with_packages(with_python(profile.base, profile.python), profile.bundle.packages)
        return self._more_system(profile, parent, f"{profile.stem}-cuda-os", base, self._cuda_packages(profile))

    def _cuda_packages(self, profile: Profile) -> tuple[str, ...]:
        if self._cuda_config is None or profile.base.config.family != "deb":
            return ()
        levels = self._cuda_config.levels
        return tuple(package for level in self._levels(profile) for package in levels[level].packages)

    def _levels(self, profile: Profile) -> tuple[str, ...]:
        return self._cuda_config.below(profile.cuda_level) if self._cuda_config else ()

    def _cuda(self, profile: Profile, parent: Stage, level: str) -> Stage:
        """One level of CUDA: a folder that nothing else writes to, the same for all images."""
        assert self._cuda_config is not None  # or there would be no levels
        config, folder = self._cuda_config, self._root / CUDA_RECIPE
        locks = {name: self._cuda_lock(config.levels[name].lock) for name in config.below(level)}
        lock, requirements = config.levels[level].lock, locks.pop(level)
        self._check_once(profile, requirements)
        if profile.base.config.family == "rpm" and config.levels[level].rpm:
            return self._cuda_rpm(profile, parent, level, config)

        def make(name: str) -> Stage:
            compilers = any(config.levels[lower_level].packages for lower_level in config.below(level))
            variables = {"lock": lock, "compilers": compilers, "driver": config.driver, "installer": self._installer}
            variables["version"] = config.version
            text = self._templates.render(f"{CUDA_RECIPE}/cuda.snippet.j2", **template_variables(profile), **variables)
            files = {path: content for path, content in self._files(folder / "files").items() if path in text}
            if not lock:
                return Stage(name, Kind.closed, parent.name, text, files)
            files[REQUIREMENTS] = as_file(requirements)
            lower = sha256("\n".join(line for lines in locks.values() for line in lines).encode()).hexdigest()
            abi = {**self._abi(profile), "cuda": lower}
            stage = Stage(name, Kind.closed, parent.name, text, files, requirements=requirements, abi=abi, writes=CUDA)
            return self._carried(stage, f"{CUDA_RECIPE}/cuda.snippet.j2")

        return self._once("cuda", f"{profile.stem}-cuda-{level}", make)

    def _cuda_rpm(self, profile: Profile, parent: Stage, level: str, config: CudaConfig) -> Stage:
        """One level of CUDA as packages of rpm, from a repository that is trusted by its lowest level."""
        *lower, _ = config.below(level)
        repositories = {CUDA_REPOSITORY: config.repository}
        base = with_packages(with_python(profile.base, profile.python), profile.bundle.packages)
        every = base.config.model_copy(update={"repositories": {**base.config.repositories, **repositories}})
        names = tuple(name for lower_level in lower for name in config.levels[lower_level].rpm)
        below = with_packages(replace(base, config=every), names)

        def make(name: str) -> Stage:
            system = self._beyond(below, config.levels[level].rpm)
            variables_of_level = {"level": level, "version": config.version, "key": config.key, "system": system}
            variables_of_level |= {"repositories": repositories, "repository": config.repository}
            variables = {**template_variables(profile), **variables_of_level}
            text = self._templates.render(f"{CUDA_RECIPE}/rpm.snippet.j2", **variables)
            own = {**self._files(self._root / CUDA_RECIPE / "files"), **system_locks.sources(below)}
            files = {path: content for path, content in own.items() if path in text}
            suite, family = base.config.suite, base.config.family
            return Stage(name, Kind.instructions, parent.name, text, files, system, suite=suite, family=family)

        return self._once("cuda", f"{profile.stem}-cuda-{level}", make)

    def _cuda_lock(self, name: str) -> tuple[str, ...]:
        if not name:
            return ()
        return python_locks.exact(self._root / CUDA_RECIPE / "locks" / f"{name}.txt")

    def _check_once(self, profile: Profile, requirements: tuple[str, ...]) -> None:
        """Refuse an image that would have a library of CUDA twice: from its level, and from its Python packages."""
        categories = (FIRST_CATEGORY, *filter(None, [profile.ide.config.category]))
        own = python_locks.versions(self._lock(profile.bundle.pythons[profile.python], categories))
        libraries = {library_name(name) for name in python_locks.versions(requirements)}
        if twice := sorted(name for name in own if library_name(name) in libraries):
            raise RefitError(
                f"{profile.stem} would have {', '.join(twice)} twice: in CUDA's level and among its Python packages.",
                hint="write `cuda: driver` in the release: the libraries come with the Python packages.",
            )

    def _more_system(
        self, profile: Profile, parent: Stage, name: str, base: Base, packages: tuple[str, ...]
    ) -> Stage | None:
        """The system packages that come to those of `base`; none where nothing does."""
        if not (system := self._beyond(base, packages)):
            return None

        def make(name: str) -> Stage:
            variables = {**template_variables(profile), "system": system}
            text = self._templates.render("snippets/os-packages.snippet.j2", **variables)
            files = self._common_files(profile.base, text)
            suite, family = profile.base.config.suite, profile.base.config.family
            return Stage(name, Kind.instructions, parent.name, text, files, system, suite=suite, family=family)

        return self._once("system", name, make)

    def _python(self, profile: Profile, parent: Stage) -> Stage:
        """The bundle's Python packages."""

        def make(name: str) -> Stage:
            return self._packages(profile, name, parent, FIRST_CATEGORY)

        return self._once("python", f"{profile.bundle.name}-{profile.base.name}-{profile.python}", make)

    def _custom(self, profile: Profile, parent: Stage) -> Stage | None:
        """The instructions of the bundle and of those that it extends, theirs first."""
        files = (self._path(folder / "custom" / "custom.snippet.j2") for folder in profile.bundle.lineage)
        if not (templates := [file for file in files if file in self._templates.texts]):
            return None

        def make(name: str) -> Stage:
            text = "".join(self._templates.render(file, **template_variables(profile)) for file in templates)
            return Stage(name, Kind.instructions, parent.name, text)

        return self._once("custom", f"{profile.bundle.name}-custom-{profile.base.name}-{profile.python}", make)

    def _ide_packages(self, profile: Profile, parent: Stage) -> Stage | None:
        """The Python packages that the IDE needs, locked together with the bundle's."""
        category = profile.ide.config.category
        if not category:
            return None

        def make(name: str) -> Stage:
            stage = self._packages(profile, name, parent, category)
            # Nobody can tell the effects of the bundle's own instructions on the environment.
            return stage if parent.kind is Kind.closed else replace(stage, kind=Kind.instructions, abi={}, writes=())

        return self._once("packages", f"{profile.stem}-packages", make)

    def _npm(self, profile: Profile, parent: Stage) -> Stage | None:
        """The npm packages of the IDE, in a folder that nothing else writes to, and Node, if it is to stay."""
        ide = profile.ide
        if not (ide.folder / npm.LOCK).exists():
            return None

        def make(name: str) -> Stage:
            own, node = self._path(ide.folder / "npm" / "npm.snippet.j2"), self._root / NODE
            template = own if own in self._templates.texts else "snippets/npm.snippet.j2"
            variables = {**template_variables(profile), "installer": self._installer, "keep_node": ide.config.keep_node}
            text = self._templates.render(template, **variables)
            files = {path: file for path, file in self._files(ide.folder / "npm").items() if path.endswith("json")}
            locked = python_locks.exact(node)
            files[REQUIREMENTS] = bounds.read_bytes(node, bounds.TEXT)
            requirements = locked if ide.config.keep_node else ()
            stage = Stage(name, Kind.instructions, parent.name, text, files, requirements=requirements)
            return self._carried(replace(stage, kind=Kind.closed, abi=self._abi(profile), writes=(IDE,)), template)

        return self._once("npm", f"{profile.stem}-npm", make)

    def _ide(self, profile: Profile, parent: Stage) -> Stage:
        """The IDE's own part: programs, files, and how it starts."""
        ide = profile.ide

        def make(name: str) -> Stage:
            variables = {**template_variables(profile), "ide": ide.name, "port": ide.config.access.port}
            variables["downloads"] = ide.config.downloads
            text = self._templates.render(self._path(ide.folder / f"{ide.name}.snippet.j2"), **variables)
            kind = Kind.closed if self._has_no_programs(text) else Kind.instructions
            shared = {path: content for path, content in self._files(self._root / WEB).items() if path in text}
            return Stage(name, kind, parent.name, text, shared | self._files(ide.folder / "files"))

        return self._once("ide", profile.stem, make)

    def _packages(self, profile: Profile, name: str, parent: Stage, category: str) -> Stage:
        """The Python packages of a category, wheels all of them; those that the index lacks are built."""
        requirements = self._requirements(profile, category)
        from_index, of_source = python_locks.split(requirements, self._built(profile))
        if category != FIRST_CATEGORY:  # then those of the first are there
            of_source = tuple(line for line in of_source if line not in self._requirements(profile, FIRST_CATEGORY))
        template = f"snippets/{'environment' if category == FIRST_CATEGORY else 'packages'}.snippet.j2"
        variables = {**template_variables(profile), "installer": self._installer, "built": bool(of_source)}
        variables["indexes"] = self._pipfile(profile.bundle.pythons[profile.python] / "Pipfile").further(category)
        stage = Stage(
            name,
            Kind.closed,
            parent.name,
            self._templates.render(template, **variables),
            files={REQUIREMENTS: as_file(from_index)},
            requirements=requirements,
            abi=self._abi(profile),
            writes=(ENVIRONMENT,),
            wheels=self._wheels(profile, category, of_source) if of_source else None,
        )
        return self._carried(stage, template)

    def _carried(self, stage: Stage, template: str) -> Stage:
        """A closed stage, if Refit's own text starts its programs: others may read anything in the image below."""
        own = not is_shipped(template, self._templates.texts)
        return replace(stage, kind=Kind.instructions, abi={}, writes=()) if own else stage

    def _wheels(self, profile: Profile, category: str, of_source: tuple[str, ...]) -> Stage:
        """The packages of a category that have no wheel, built with compilers and tools that are locked, too."""
        bundle, base = profile.bundle, with_python(profile.base, profile.python)
        suite, family = base.config.suite, base.config.family
        ground = self.foundation(profile.base, profile.python).name

        def make(name: str) -> Stage:
            # The bundle's own, too: programs that are built may be linked with them.
            system = self._beyond(base, (*bundle.packages, *bundle.compilers))
            tools = self._requirements(profile, BUILDER)
            snippets = [self._path(folder / "builder" / "builder.snippet.j2") for folder in lineage(bundle)]
            own = [snippet for snippet in snippets if snippet in self._templates.texts]
            variables = {**template_variables(profile), "installer": self._installer, "system": system, "own": own}
            pipfile = self._pipfile(bundle.pythons[profile.python] / "Pipfile")
            variables["environment"] = [shlex.quote(f"{key}={value}") for key, value in pipfile.environment.items()]
            text = self._templates.render("snippets/wheels.snippet.j2", **variables)
            files = {REQUIREMENTS: as_file(tools), SOURCES: as_file(of_source), **self._common_files(base, text)}
            return Stage(
                *(name, Kind.wheels, ground, text, files, system, (*tools, *of_source), suite, family),
                abi=self._abi(profile),
            )

        of = bundle.name if category == FIRST_CATEGORY else f"{bundle.name}-{category}"
        return self._once("wheels", f"{of}-wheels-{base.name}-{profile.python}", make)

    def _built(self, profile: Profile) -> Built:
        return self._pipfile(profile.bundle.pythons[profile.python] / "Pipfile").built

    def _abi(self, profile: Profile) -> Mapping[str, str]:
        """The properties of the image below on which installed packages depend; pip is the base's own."""
        abi = {"os": profile.base.name, "suite": profile.base.config.suite, "python": profile.python}
        if self._installer == "pip":
            system = self._resolve(with_python(profile.base, profile.python))
            abi["pip"] = next((p for p in system if p.startswith(f"{PIP}=")), "")
        return abi

    def _beyond(self, base: Base, packages: tuple[str, ...]) -> tuple[str, ...]:
        """The exact system packages that some bring beside those of a base."""
        if not packages:
            return ()
        return tuple(sorted(set(self._resolve(with_packages(base, packages))) - set(self._resolve(base))))

    def _resolve(self, base: Base) -> tuple[str, ...]:
        key = (base.name, *base.config.repositories, *base.packages)
        if key not in self._resolved:
            self._resolved[key] = self._resolving(base)
        return self._resolved[key]

    def _once(self, step: str, name: str, make: Callable[[str], Stage]) -> Stage:
        if (step, name) not in self._made:
            self._made[step, name] = make(name)
        return self._made[step, name]

    def _requirements(self, profile: Profile, category: str) -> tuple[str, ...]:
        return self._lock(profile.bundle.pythons[profile.python], (category,))

    def _path(self, file: Path) -> str:
        return relative_path(self._root, file)
