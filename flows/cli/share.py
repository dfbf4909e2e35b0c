"""The part of `refit session` that is about sharing: other people use a session, until when."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from flows.cli.console import Json, out, show_data
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.cli.user import hub_settings
    from flows.core.database import now
    from flows.sessions import wishes
    from flows.sessions.people.entitlements import Kind
    from flows.sessions.preferences import read_duration
    from flows.web.authorizer.sharing import CODE_TIME, Sharing

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the session, or PERSON/SERVER.")]
With = Annotated[str | None, typer.Option("--with", metavar="PERSON", help="A person who has an account.")]
Group = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="A group of the Hub.")]


def share(
    name: Name,
    person: With = None,
    group: Group = None,
    code: Annotated[bool, typer.Option("--code", help="Print a link for the first person who accepts it.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="DURATION", help="How long it lasts: 2h, 3d; without it, until it is taken back."
        ),
    ] = None,
) -> None:
    """Let a person or a group use a session, or print a link that does so for one person."""
    sharing, end = Sharing.open(hub_settings()), now() + read_duration(until) if until else None
    session, by = sharing.session(name), wishes.caller()
    if code and not person and not group:
        grant, link = sharing.code(session, by, end)
        lasting = _until(end) or f" within {CODE_TIME.days} days"
        out.print(
            f"Give this link to one person. It works once,{lasting}. `refit session shares` calls it {grant.subject}."
        )
        out.print(link, highlight=False, soft_wrap=True)
    else:
        kind, subject = _subject(person, group, "", taken=code)
        sharing.share(session, kind, subject, by, end)
        out.print(f"{subject} may use the session {session}{_until(end)}: {sharing.url(session)}", soft_wrap=True)
    out.print("Guests act as the session's user, with the owner's files and logins; they are told so, too.")


def shares(name: Name, as_json: Json = False) -> None:
    """List the people, groups and links that a session is shared with, and when guests were seen in it last."""
    sharing = Sharing.open(hub_settings())
    listed = sharing.shares(sharing.session(name))
    rows = (
        (share.kind, share.subject, share.by, _moment(share.at), _moment(share.until), _moment(share.came_in))
        for share in listed
    )
    columns = ("kind", "with", "by", "since (UTC)", "until", "seen last")
    show_data(as_json, listed, tables.table("Shares", columns, rows))


def unshare(
    name: Name,
    person: With = None,
    group: Group = None,
    code: Annotated[str | None, typer.Option("--code", metavar="ID", help="A link that nobody has accepted.")] = None,
) -> None:
    """Take a share back: open connections of those people close within two seconds."""
    sharing = Sharing.open(hub_settings())
    session = sharing.session(name)
    kind, subject = _subject(person, group, code or "", taken=False)
    if not sharing.unshare(session, kind, subject, wishes.caller()):
        raise RefitError(
            f"The session {session} isn't shared with the {kind} {subject!r}.",
            hint=f"`refit session shares {session}` lists its shares.",
        )
    out.print(f"The session {session} isn't shared with {subject} any more.")


def _subject(person: str | None, group: str | None, code: str, *, taken: bool) -> tuple[Kind, str]:
    named = [(kind, it) for kind, it in ((Kind.person, person), (Kind.group, group), (Kind.code, code)) if it]
    if len(named) != 1 or taken:
        count = "More than one" if named else "None"
        raise RefitError(
            f"{count} of --with, --group and --code was given.",
            hint="give one: --with PERSON, --group GROUP, or --code.",
        )
    return named[0]


def _until(end: datetime | None) -> str:
    return f" until {end:%Y-%m-%d %H:%M} UTC" if end else ""


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else ""
