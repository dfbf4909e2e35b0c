"""Notices for owners of profiles of their own: a build that they asked for has ended.

They go to addresses of the owner, to terminals of their sessions at which somebody sits, and to pages of JupyterLab and
VS Code. A guest may be the one who sees them there, so they say that a build failed, and not why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from flows.core import operator_alerts
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.gateway import routes
from flows.publishing.own_build_results import Outcome, Result
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.activity.probes import see
from flows.sessions.ide import terminal_messages
from flows.sessions.ide.jupyter import Jupyter
from flows.sessions.ide.page_notices import Windows
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session

logger = logging.getLogger("refit.own-builds")

MOST = 20  # sessions of one owner in which one result is shown
_ID = "own-build "


def notice(own: OwnProfile, outcome: Outcome, page: str) -> tuple[str, str]:
    """Title and text; `page` is the address of the page *My profiles*, empty: there is none. Pure."""
    more = {
        Outcome.built: f"Sessions can start from {own.profile} of release {own.release}.",
        Outcome.failed: "`refit mine build-log` says why.",
        Outcome.killed: "Its process was ended before its time: send the recipe again.",
    }[outcome]
    how = {Outcome.built: "was built", Outcome.failed: "wasn't built", Outcome.killed: "wasn't built"}[outcome]
    return f"Your profile {own.bundle} {how}", f"{more}{f' My profiles: {page}' if page else ''}"


def tell(settings: Settings, result: Result) -> None:
    """Tell the owner of a build that it has ended; one who can't be told sees it on the page all the same."""
    own = OwnProfiles(open_database(settings.database)).find(result.bundle)
    if own is None or own.owner != result.owner:
        return  # its name was given back meanwhile
    page = f"{settings.public_url}{routes.MY_SESSIONS}/profiles" if settings.hub_wanted else ""
    title, text = notice(own, result.outcome, page)
    addresses = settings.notify_owners.get(own.owner, ())
    for failure in operator_alerts.send_to(addresses, f"Refit: {title}", text, "notify_owners"):
        logger.warning("%s", failure)
    try:
        sessions = Sessions.open(settings)
        at_once(lambda session: _show(sessions, session, result, title, text), list(_of(sessions, own.owner)))
    except Exception as error:  # builds of others wait for this process
        logger.warning("%s can't be told in sessions of theirs: %r", own.owner, error)


def _of(sessions: Sessions, owner: str) -> Iterator[Session]:
    names = sorted(name for name, whose in sessions.store.owners().items() if whose == owner)
    for name in names[:MOST]:
        with suppress(RefitError):  # it is stopped, or moves just now
            yield sessions.that_runs(name)


def _show(sessions: Sessions, session: Session, result: Result, title: str, text: str) -> None:
    with suppress(RefitError):
        watched = terminal_messages.watched(see(sessions.engine, session))
        terminal_messages.write(sessions.engine, session, f"{title}. {text}", watched)
    with suppress(RefitError):
        pages = sessions.pages(session)
        id = f"{_ID}{result.bundle} {result.at:%Y%m%d-%H%M%S}"
        # A page shows the newest notice alone: one about a move that somebody hasn't closed is more urgent. VS Code has
        # room for one, and shows its text.
        if isinstance(pages, Jupyter) and not _is_open(pages):
            pages.leave_notice(id, title, text)
        elif isinstance(pages, Windows):
            pages.add_notice(id, title, f"{title}. {text}", kind=_ID)


def _is_open(pages: Jupyter) -> bool:
    """Whether the newest notice is another one that nobody has closed."""
    latest = next(reversed(pages.notices().values()), None)
    return latest is not None and not latest.closed and not latest.id.startswith(_ID)
