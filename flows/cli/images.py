"""The part of the `refit` command that is about images in the registry: which there are, and which count."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flows.cli.console import Json, Yes, err, out, show_data
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.catalog.tag import tags_among
    from flows.cli import tables
    from flows.core.database import open_database
    from flows.core.settings import load
    from flows.images.registry import Registry
    from flows.publishing import evidence
    from flows.publishing.signatures import Publications
    from flows.publishing.vouching import candidates, vouch
    from flows.sessions.wishes import caller
    from flows.signing.keys import Keys, pem_of
    from flows.signing.trust import Trust

images_app = typer.Typer(invoke_without_command=True)
What = Annotated[str, typer.Argument(metavar="IMAGE-OR-KEY", help="Tag, alias or digest of an image; or id of a key.")]
_KEY_DIGITS = 64


@images_app.callback()
def list_images(context: typer.Context, as_json: Json = False) -> None:
    """List the images in the registry: every tag with its digest."""
    if context.invoked_subcommand is not None:
        return
    registry = Registry(load())
    digests = registry.digests(
        registry.repository, [str(tag) for tag in tags_among(registry.tags(registry.repository))]
    )
    rows = ((tag, tables.short(digest)) for tag, digest in sorted(digests.items()))
    show_data(as_json, digests, tables.table("Images", ("tag", "digest"), rows))


@images_app.command("sign")
def sign_images(
    image: Annotated[list[str] | None, typer.Argument(metavar="TAG", help="Only these: tags or digests.")] = None,
    profile: Annotated[list[str] | None, typer.Option(metavar="PROFILE", help="Only of these profiles.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Not only what aliases point at: all date tags.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be signed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Sign images that nobody has signed, as those from before an upgrade, after showing them; you vouch for them."""
    settings = load()
    registry = Registry(settings)
    publications = Publications(settings, registry=registry)
    images = candidates(registry, publications, image or (), profile or (), dated=everything)
    rows = (
        (
            ", ".join(listed.tags),
            tables.short(listed.digest),
            listed.profile,
            listed.refusal.doubt,
            "yes" if listed.tested else "no",
        )
        for listed in images
    )
    show_data(as_json, images, tables.table("To be signed", ("tags", "digest", "profile", "is", "tested"), rows))
    if dry_run or not images or (not yes and (as_json or not sys.stdin.isatty())):
        return
    if not yes:
        typer.confirm("Sign them? Sessions can be made from them and moved to them then.", abort=True)
    for candidate in images:
        vouch(registry, publications, candidate)
    if not as_json:
        out.print(f"{len(images)} images are signed.")


@images_app.command("revoke")
def revoke(
    what: What, why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Reason, for the record.")]
) -> None:
    """Revoke an image, or all that a key has signed: none is started or moved to; running sessions go on."""
    settings = load()
    name = _named(what, Registry(settings))
    Trust(settings, open_database(settings.database)).revoke(name, why, caller())
    out.print(f"{name} is revoked. `refit images restore {name}` takes that back.", soft_wrap=True, highlight=False)


@images_app.command("restore")
def restore(what: What) -> None:
    """Undo the revocation of an image or a key."""
    settings = load()
    name = _named(what, Registry(settings))
    if not Trust(settings, open_database(settings.database)).restore(name):
        err.print(f"{name} was not revoked.", markup=False)
        raise typer.Exit(1)


@images_app.command("revoked")
def list_revoked(as_json: Json = False) -> None:
    """List the images and keys that were revoked."""
    settings = load()
    revocations = Trust(settings, open_database(settings.database)).revocations()
    rows = (
        (revocation.what, revocation.why, revocation.by, f"{revocation.at:%Y-%m-%d %H:%M} UTC")
        for revocation in revocations
    )
    show_data(as_json, revocations, tables.table("Revoked", ("what", "why", "by", "at"), rows))


@images_app.command("keys")
def show_keys(
    new: Annotated[
        bool, typer.Option("--new", help="Generate another signing key; signatures of the former go on to count.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the keys whose signatures count here, and print the public half of the one that signs."""
    keys = Keys(load())
    if new:
        keys.renew()
    signing = keys.signer().public_key
    rows = ((id, key.scheme, "yes" if id == signing.keyid else "") for id, key in keys.trusted().items())
    listing = {"signing": signing.keyid, "public": pem_of(signing), "trusted": sorted(keys.trusted())}
    show_data(as_json, listing, tables.table("Keys", ("id", "kind", "signs"), rows))
    if not as_json:
        out.print(pem_of(signing), end="", highlight=False, soft_wrap=True)


def _named(what: str, registry: Registry) -> str:
    """The digest of an image, or the id of a key."""
    is_key = len(what) == _KEY_DIGITS and not set(what) - set("0123456789abcdef")
    return what if is_key or what.startswith("sha256:") else evidence.find(registry, what).digest
