"""Real images: bundles of the catalog with IDEs of it, on deb12.

All others build what `refit containerfile` prints for each image. They and Refit start from the same
base, which is there, and end with all images in a registry; Refit's checks, labels and tags are not in its figures.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import yaml

from bench.docker import Unavailable, daemon
from bench.matrix import LAYERS, Run, build_with_refit, scratch
from bench.patch import PATCH
from bench.results import Row
from flows.catalog import load
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images import containerfile_export
from flows.images.build import Builder
from flows.images.registry import Registry
from flows.releases.plan import ReleasePlan, chosen, plan_release, read_catalog

ROOT = Path(__file__).parents[1]
RELEASE, OS, PYTHON = "2000a", "deb12", "py311"
# Of each of these that the catalog has, with each: bundles with packages for GPUs would be downloads above all.
BUNDLES, IDES = ("minimal", "datascience", "langchain", "spark"), ("jupyter", "terminal", "vscode")
NAIVE, BAKE = "buildah build", "docker buildx bake"

Contexts = Mapping[str, Path]  # image → folder with its Containerfile


def run() -> list[Row]:
    """Four bundles with three IDEs, cold, warm, and on a patched base: Refit, buildah, and `docker buildx bake`."""
    with scratch() as settings:
        catalog = make_catalog(settings.folder("catalog"))
        planned = plan(catalog, settings)
        [base] = (stage for stage in planned.graph.stages.values() if stage.parent is None)
        old = Builder(settings, Registry(settings)).build(base, None).digest
        again, patched = partial(plan, catalog, settings), partial(patch, catalog, settings)
        runs = build_with_refit([again, again, patched], settings)
        new = runs[-1].stages[base.name].digest
        peers, skipped = _peers(*(_contexts(planned, digest, settings) for digest in (old, new)))
    return rows(planned, runs, peers, skipped)


def rows(
    planned: ReleasePlan, runs: Sequence[Run], peers: Mapping[str, Sequence[float]], skipped: Mapping[str, str]
) -> list[Row]:
    """The rows to write down.

    Args:
        planned: the images.
        runs: Refit's results cold, warm, and after a patch of the base, whose own build counts for nobody.
        peers: the seconds of others in the same three cases, or in the first alone.
        skipped: others that could not be measured, and why.
    """
    graph, last = planned.graph, runs[-1]
    bases = sum(last.stages[name].seconds for name, stage in graph.stages.items() if stage.parent is None)
    results = []
    for number, case in enumerate(("cold", "nothing changed", "on a patched base")):
        ours = runs[number].seconds - (bases if runs[number] is last else 0)
        others = {name: seconds[number] for name, seconds in peers.items() if number < len(seconds)}
        fastest = ours < min(others.values())
        results.append(Row(f"{told(planned)}, {case}", "s", "fastest of all", ours, fastest, others, skipped))
    return results


def told(planned: ReleasePlan) -> str:
    """How many images these are, and of what."""
    bundles = dict.fromkeys(profile.bundle.name for profile in planned.profiles)
    ides = dict.fromkeys(profile.ide.name for profile in planned.profiles)
    return f"{len(planned.profiles)} real images ({' '.join(bundles)} × {' '.join(ides)})"


def make_catalog(folder: Path) -> Path:
    """A copy of the catalog with a release of the images that are wanted."""
    for part in ("base", "bundles", "ides", "snippets"):
        shutil.copytree(ROOT / part, folder / part)
    catalog = load.load_catalog(folder)
    bundles = [name for name in BUNDLES if name in catalog.bundles]
    ides = [name for name in IDES if name in catalog.ides]
    profiles = [{"ide": ide, "bundle": bundle, "os": OS, "python": PYTHON} for bundle in bundles for ide in ides]
    (folder / "releases").mkdir()
    (folder / "releases" / f"{RELEASE}.yaml").write_text(yaml.safe_dump({"release": RELEASE, "profiles": profiles}))
    return folder


def plan(catalog: Path, settings: Settings, profiles: Sequence[str] = ()) -> ReleasePlan:
    """The plan of these profiles, or of all, as far as they are locked; the others are named."""
    recipes = read_catalog(catalog)
    expected = chosen(recipes, RELEASE, profiles)
    planned = plan_release(RELEASE, expected, recipes, settings, Registry(settings), thorough=True, tolerant=True)
    for stem, why in {**planned.problems, **planned.unbuildable}.items():
        print(f"left out: {stem}: {why}", file=sys.stderr)
    return planned


def patch(catalog: Path, settings: Settings, profiles: Sequence[str] = ()) -> ReleasePlan:
    """The same after the base's recipe has got another file of the system."""
    with (catalog / "base" / OS / "base.snippet.j2").open("a") as recipe:
        recipe.write(f"\n{PATCH}")
    return plan(catalog, settings, profiles)


def _contexts(planned: ReleasePlan, base: str, settings: Settings) -> Contexts:
    """The plain Containerfile of each image, each in a folder of its own."""
    origin, folder = _company_base(base, settings), settings.folder("contexts", base.removeprefix("sha256:"))
    results = {}
    for stem, top in planned.graph.tops.items():
        text = containerfile_export.containerfile(stem, RELEASE, planned.graph.ancestry(top), origin, secure=False)
        results[stem] = folder / stem
        results[stem].mkdir()
        (results[stem] / "Containerfile").write_text(text)
    return results


def _company_base(base: str, settings: Settings) -> str:
    """The base with the index and the authorities of the settings at the place that plain Containerfiles look at.

    `buildah build` would mount them; Docker can't, so that all get them in the same way.
    """
    registry, buildah = Registry(settings), tools.buildah(settings)
    folder = settings.folder("company")
    variables = dict.fromkeys(("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), settings.pip_index_url.get_secret_value())
    variables["NPM_CONFIG_REGISTRY"] = settings.npm_registry
    if settings.ca_bundle:
        shutil.copyfile(settings.ca_bundle, folder / "ca.pem")
        variables |= dict.fromkeys(
            ("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"), f"{containerfile_export.COMPANY}/ca.pem"
        )
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if value]
    (folder / "env.sh").write_text("".join(exports))
    (folder / "Containerfile").write_text(
        f"FROM {registry.host}/{registry.stages}@{base}\nCOPY --chmod=0644 . {containerfile_export.COMPANY}/\n"
    )
    target = f"{registry.host}/bench:{base.removeprefix('sha256:')}"
    command.run([*buildah, "build", "--tls-verify=false", "--tag", target, str(folder)], root=True)
    command.run([*buildah, "push", "--quiet", "--tls-verify=false", target], root=True)
    return target


def _peers(before: Contexts, after: Contexts) -> tuple[dict[str, list[float]], dict[str, str]]:
    """How long others take cold, warm and on a patched base, or why that can't be measured here."""
    with scratch() as alone:
        results = {NAIVE: [_buildah(before, "--layers=false", alone)]}
    with scratch() as alone:
        results[LAYERS] = [_buildah(contexts, "--layers", alone) for contexts in (before, before, after)]
    try:
        with scratch() as alone, daemon(alone.folder("docker")) as docker:
            results[BAKE] = [docker.bake(_targets(contexts, alone)) for contexts in (before, before, after)]
    except Unavailable as missing:
        return results, {BAKE: str(missing)}
    except command.ProgramFailed as failed:
        return results, {BAKE: f"not measured, it failed: {failed.tail.strip().splitlines()[-1]}"}
    return results, {}


def _targets(contexts: Contexts, settings: Settings) -> Contexts:
    """Where in the registry each image goes → its folder."""
    return {f"{settings.registry_host}/bench/{name}": context for name, context in contexts.items()}


def _buildah(contexts: Contexts, layers: str, settings: Settings) -> float:
    """Build and push one image after the other; returns the seconds. It keeps nothing unless it keeps layers."""
    insecure, buildah = "--tls-verify=false", tools.buildah(settings)
    options = [layers, "--isolation", tools.isolation(settings), insecure, "--timestamp", "0"]
    started = monotonic()
    for name, context in _targets(contexts, settings).items():
        command.run([*buildah, "build", *options, "--tag", name, str(context)], root=True, limit=3600)
        command.run([*buildah, "push", "--quiet", insecure, name], root=True, limit=3600)
    return monotonic() - started
