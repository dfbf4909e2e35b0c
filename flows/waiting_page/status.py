"""The text for people who come to a session that is away. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from statistics import median

from flows.core.formatting import short
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State


class Why(StrEnum):
    """Why nobody gets into a session."""

    moving = "moving"
    interrupted = "interrupted"
    starting = "starting"
    stopped = "stopped"
    missing = "missing"
    unknown = "unknown"
    login = "login"


@dataclass(frozen=True)
class Seen:
    """The facts about a session that is away.

    Attributes:
        name: of the session.
        should_run: whether it ought to run; none: there is no such session.
        asked: since when that is so.
        busy: somebody acts on it now.
        move: its move that has not ended.
        entries: the lines of that move.
        downtimes: seconds that sessions were away when they were moved lately.
        page: path at which its owner starts it again; empty: there is none, and the shell is named.
    """

    name: str
    should_run: bool | None
    asked: datetime | None = None
    busy: bool = False
    move: Move | None = None
    entries: Sequence[Entry] = ()
    downtimes: Sequence[float] = ()
    page: str = ""


@dataclass(frozen=True)
class AwayStatus:
    """The text for a person.

    Attributes:
        session: its name.
        why: in one word.
        headline: in one line.
        text: the next event, and the person's choices.
        since: since when it is away, where that is known.
        expected: seconds that it is away altogether, where that is known.
        again: seconds after which to ask again.
        page: path at which its owner starts it again; empty: there is none.
    """

    session: str
    why: Why
    headline: str
    text: str
    since: datetime | None = None
    expected: float | None = None
    again: float = 1.0
    page: str = ""


LOGIN_AWAY = AwayStatus(
    "",
    Why.login,
    "Nobody can log in just now",
    "JupyterHub, or a page beside it, doesn't answer; it may be starting. Sessions go on, and people who are logged in "
    "stay so. "
    "This page goes on by itself as soon as it is back.",
    again=2,
)
HOME_STAYS = "The home stays as it is, with everything in it."
COMES_BACK = "This page opens the session by itself as soon as it is back."


def tell(seen: Seen) -> AwayStatus:
    """The status of a session that is away."""
    name = seen.name
    if seen.should_run is None:
        return AwayStatus(
            name, Why.unknown, "There is no such session", "Maybe it was removed, or its name is another."
        )
    if seen.move and seen.should_run:
        return _moving(seen, seen.move)
    if not seen.should_run:
        headline, text = f"{name} was stopped by its owner", f"{_start(seen)} {COMES_BACK}"
        return AwayStatus(name, Why.stopped, headline, text, since=seen.asked, again=5, page=seen.page)
    if seen.busy:
        return AwayStatus(name, Why.starting, f"{name} is being started", COMES_BACK, since=seen.asked)
    text = f"It ought to run. {_start(seen)} {COMES_BACK}"
    return AwayStatus(name, Why.missing, f"{name} doesn't answer", text, again=2, page=seen.page)


def _start(seen: Seen) -> str:
    """How it is started again; people who log in to a Hub have no shell on this machine."""
    return "Its owner can start it again." if seen.page else f"`refit session start {seen.name}` starts it again."


def _moving(seen: Seen, move: Move) -> AwayStatus:
    since = next((entry.at for entry in seen.entries if (entry.step, entry.phase) == ("stop", Phase.intent)), None)
    usual = round(median(seen.downtimes), 1) if seen.downtimes else None
    if not seen.busy:
        at_once = "" if seen.page else ", and by `refit migrate recover` at once"
        mended = f"That is mended within two minutes{at_once}."
        text = f"The process that moved it was ended in the middle. {mended} {HOME_STAYS} {COMES_BACK}"
        return AwayStatus(seen.name, Why.interrupted, f"The move of {seen.name} was interrupted", text, since, again=2)
    if move.state is State.rolling_back:
        text = f"The new image didn't do what it should. {HOME_STAYS} {COMES_BACK}"
        return AwayStatus(seen.name, Why.moving, f"{seen.name} goes back to the image that it had", text, since, usual)
    text = f"{HOME_STAYS} {COMES_BACK}"
    return AwayStatus(seen.name, Why.moving, f"{seen.name} is being moved onto {_onto(move)}", text, since, usual)


def _onto(move: Move) -> str:
    after, before = move.after, move.before
    what = "another image" if after.profile == before.profile else after.profile
    return f"{what} ({short(after.image)})"
