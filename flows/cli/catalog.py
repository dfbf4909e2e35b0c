"""Verbs for those who keep a catalog: releases, profiles, recipes. Parses, calls, prints; no logic."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import (
    Json,
    ReleaseName,
    err,
    out,
    running_flows,
    show,
    show_data,
    show_json,
    show_text,
    shown_catalog,
)
from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.importing import report
    from flows.authoring.importing.adoption import adopt
    from flows.authoring.lint.catalog import lint as look_at
    from flows.catalog import load as catalogs
    from flows.catalog import skeletons, tree
    from flows.catalog.choices import Option
    from flows.catalog.model import Catalog, Profile
    from flows.cli import tables
    from flows.cli import wizard as questions
    from flows.core.atomic_files import write_whole
    from flows.core.database import now
    from flows.core.documents import Mistakes
    from flows.core.settings import load
    from flows.releases import branches, image_table
    from flows.releases.containerfile import show as show_image

# As in `main`: the verbs import Prefect, so they are imported where they are run.
# ruff: noqa: PLC0415

release_app = typer.Typer(no_args_is_help=True)


@release_app.command("list")
def list_releases(as_json: Json = False) -> None:
    """List all releases, newest first: where they are, until when they are supported, when their nights are."""
    branches_there = branches.releases(load().catalog)
    show_data(as_json, branches_there, tables.releases(branches_there, now().date()))


@release_app.command("table")
def release_table(
    release: ReleaseName,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there, between its marks.")] = None,
    as_json: Json = False,
) -> None:
    """Show each profile of a release with its image in figures, or why it can't be built here."""
    rows = image_table.shipped(release, None, load())
    show_data(as_json, rows, tables.table(f"Release {release}", image_table.COLUMNS, (row.cells for row in rows)))
    if write:
        write_whole(write, image_table.within(write.read_text(encoding="utf-8"), image_table.markdown(rows)))


@release_app.command("cut")
def cut(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Name of the new release, e.g. 2026b.")],
    start: Annotated[
        str, typer.Option("--from", metavar="COMMIT", help="Branch, tag or commit that it begins with.")
    ] = "HEAD",
    until: Annotated[
        datetime.datetime | None,
        typer.Option(metavar="YYYY-MM-DD", formats=["%Y-%m-%d"], help="The last day on which it is supported."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the branch of a new release with its release file and first lock; later locks change patches alone."""
    with running_flows(quiet=as_json):
        from flows.cut_release import cut_release

        locks = cut_release(release, start, until.date() if until else None)
    rows = ((lock.bundle, lock.base, lock.python, lock.change) for lock in locks)
    show_data(as_json, locks, tables.table("Locks", ("bundle", "base", "python", "change"), rows))
    if not as_json:
        out.print(f"The branch {release} was made, and nothing pushed. `refit nightly {release}` builds it.")


def wizard(
    release: Annotated[str, typer.Option(metavar="RELEASE", help="Release that it belongs to.")] = "",
    system: Annotated[str, typer.Option("--os", metavar="OS", help="Operating system; CentOS is experimental.")] = "",
    python: Annotated[str, typer.Option(metavar="PYTHON", help="Python, e.g. py311.")] = "",
    cuda: Annotated[str, typer.Option(metavar="LEVEL", help="Level of CUDA, or none; on Arm it is experimental.")] = "",
    bundle: Annotated[str, typer.Option(metavar="BUNDLE", help="Set of libraries.")] = "",
    ide: Annotated[str, typer.Option(metavar="IDE", help="Program that opens; RStudio is experimental.")] = "",
    write: Annotated[bool | None, typer.Option("--write/--no-write", help="Add it to the release's file.")] = None,
    build: Annotated[bool | None, typer.Option("--build/--no-build", help="Build it.")] = None,
) -> None:
    """Find a profile by questions, see its image as a Containerfile, add it to a release, build it.

    Only what is possible is asked, and each question has an option. Without a terminal, nothing is asked.
    """
    settings = load()
    recipes = catalogs.load_catalog(settings.catalog)
    pick = _pick if sys.stdin.isatty() and out.is_terminal else None
    given = {"os": system, "python": python, "cuda": cuda, "bundle": bundle, "ide": ide}
    name = release or questions.choose_release(recipes, pick)
    file = catalogs.release(recipes, name)
    given = {question: text for question, text in given.items() if text}
    answers = questions.answer(recipes, given, pick, questions.sizes(file, settings) if pick else {})
    profile = questions.profile(recipes, name, answers)
    _show_image(profile, recipes)
    stands = questions.stands_in(file, profile)
    writing = not stands and _decided(write, f"Add {profile.stem} to {name}?", pick is not None)
    building = (stands or writing) and _decided(build, "Build it?", pick is not None)
    line = questions.command_line(name, answers, writing=writing, building=building)
    out.print(f"The same without questions: {line}", highlight=False, soft_wrap=True)
    if writing:
        out.print(f"Added to {questions.write(recipes, name, answers)}.", highlight=False, soft_wrap=True)
    if building:
        with running_flows():
            from flows.build_profiles import build_profiles

            report = build_profiles(name, [profile.stem])
        show(tables.images(report))


def _show_image(profile: Profile, recipes: Catalog) -> None:
    try:
        show_text(show_image(profile, recipes, load(), unbuilt=True))
    except RefitError as error:
        err.print(f"Its Containerfile can't be shown yet. {error}", highlight=False)


def _pick(title: str, possible: Sequence[Option]) -> str:
    rows = ((n, choice.name, choice.display, _from(choice.size)) for n, choice in enumerate(possible, 1))
    show(tables.table(f"Which {title}?", ("", "name", "what", "size"), rows))
    number = 0
    while not 1 <= number <= len(possible):
        number = typer.prompt("Number", default=1, type=int)
    return possible[number - 1].name


def _from(size: int | None) -> str:
    return f"from {megabytes(size)}" if size else ""


def _decided(flag: bool | None, question: str, asking: bool) -> bool:
    return bool(typer.confirm(question)) if flag is None and asking else bool(flag)


new_app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: small letters and digits.")]


@new_app.command("bundle")
def new_bundle(name: Name) -> None:
    """Begin a bundle, a set of libraries, for each Python that another bundle has."""
    _begin("bundle", name, "Write what it needs below [packages]; then `refit wizard` and `refit lock`.")


@new_app.command("ide")
def new_ide(name: Name) -> None:
    """Begin an IDE: a page that knows prefix, token and health, to be replaced by a program."""
    _begin("ide", name, "Replace its program; `refit wizard` makes a profile of it.")


@new_app.command("base")
def new_base(name: Name) -> None:
    """Begin a base, an operating system, from the newest base of Debian packages."""
    _begin("base", name, "Change `suite` and `pythons` in its base.yaml.")


def _begin(kind: str, name: str, then: str) -> None:
    tree.require(load().catalog)
    recipes = catalogs.load_catalog(load().catalog)
    for path, text in skeletons.skeleton(kind, name, recipes).items():
        file = recipes.root / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
        except OSError as error:
            raise RefitError(
                f"{file} can't be written.",
                why=str(error),
                hint="check that the catalog's folder is yours and that the disk has room.",
            ) from None
        out.print(f"wrote {file}", highlight=False, soft_wrap=True)
    out.print(then)


def lint(
    folder: Annotated[
        Path | None, typer.Argument(metavar="CATALOG", help="Another catalog than the settings'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for mistakes in the whole catalog, without building anything: templates, scripts, downloads, secrets."""
    root = (folder or load().catalog).absolute()
    report = look_at(root, now().date())
    if as_json:
        show_json(report)
    for reason in report.left_out:
        err.print(reason, highlight=False, soft_wrap=True)
    if report.mistakes and not as_json:
        raise Mistakes(report.mistakes)
    if report.mistakes:
        raise typer.Exit(1)
    if not as_json:
        out.print(f"No mistakes in {report.templates} templates and {report.scripts} scripts.")
        out.print(shown_catalog(root), highlight=False, soft_wrap=True)


import_app = typer.Typer(no_args_is_help=True)


@import_app.command("workbench-images")
def import_workbench_images(
    checkout: Annotated[Path, typer.Argument(metavar="PATH", help="A checkout of workbench-images.")],
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the catalog is made.")] = Path("catalog"),
    cuda: Annotated[
        str,
        typer.Option(metavar="LEVEL", help="Refit's level for their images with CUDA, whatever version theirs is."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a catalog of a checkout of opendatahub's workbench-images; says what became of each recipe."""
    adoption = adopt(checkout, into, catalogs.load_catalog(load().catalog), cuda)
    if as_json:
        show_json(adoption)
        return
    show(tables.adopted(adoption.recipes))
    counts = (
        f"{adoption.catalog} is a catalog of {adoption.profiles} profiles, of {len(adoption.recipes)} recipes. "
        f"{len(adoption.notes)} things to look at are in {adoption.catalog / report.REPORT}. "
        f"Next: `refit lint {adoption.catalog}`."
    )
    out.print(counts, highlight=False, soft_wrap=True)
