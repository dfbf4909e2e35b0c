"""The authorizer's own pages, as HTML. Pure."""

from __future__ import annotations

from datetime import datetime
from html import escape

from flows.gateway import routes
from flows.sessions.people.entitlements import Access, Role

_LOOK = """<style>
:root { color-scheme: light dark; --paper: #f4f6f8; --card: #fff; --ink: #1d2a36; --sea: #1f6f8b; --line: #dde4ea; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #10171d; --card: #18222b; --ink: #e6edf3; --sea: #5cb3cf; --line: #263440; }
}
body { margin: 0; padding: 1rem; background: var(--paper); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
main { box-sizing: border-box; max-width: 40rem; margin: 8vh auto; padding: 1.6rem 2rem; overflow-wrap: anywhere;
  background: var(--card); border: 1px solid var(--line); border-radius: .9rem; }
h1 { margin: 0 0 .8rem; font-size: 1.35rem; line-height: 1.3; }
a { color: var(--sea); }
button { padding: .5rem 1rem; border: 0; border-radius: .55rem; background: var(--sea); color: var(--card);
  font: inherit; font-weight: 600; cursor: pointer; }
</style>"""
_HOME = f'<p><a href="{routes.HUB}/home">Your own sessions</a></p>'


def page(title: str, *paragraphs: str, after: str = _HOME) -> str:
    """A page of plain paragraphs, which are text, with something behind them, which is HTML."""
    text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width">{_LOOK}'
        f"<main><h1>{escape(title)}</h1>{text}{after}</main></html>"
    )


def refused(person: str, session: str) -> str:
    """Somebody who is logged in came to a session that they may not use."""
    return page(
        "You may not use this session",
        f"You are logged in as {person}. The session {session} is not yours, and it is not shared with you.",
        "Its owner can share it with you. A share that you had has ended, or was taken back.",
    )


def guest(session: str, owner: str, access: Access) -> str:
    """Somebody comes to another person's session for the first time."""
    why = "because the Hub lets you administer it" if access.role is Role.admin else _share(access)
    form = '<form method="post"><button type="submit">Open the session</button></form>'
    return page(
        f"The session of {owner}",
        f"You may use the session {session}, {why}.",
        f"In it you act as the session's user. All that you change or run there is done in the name of {owner}, with "
        f"the files and the logins of {owner}.",
        f"{owner} sees in the history of the session that you came in.",
        after=form + _HOME,
    )


def _share(access: Access) -> str:
    via = f" with the group {access.via}" if access.via else " with you"
    return f"because {access.by} has shared it{via}{_until(access.until)}"


def _until(until: datetime | None) -> str:
    return f", until {until:%Y-%m-%d %H:%M} UTC" if until else ""


def expired(what: str) -> str:
    """A login or a form is too old, or began in another browser."""
    return page(what, after=f'<p><a href="{routes.HUB}/home">Try again</a></p>')
