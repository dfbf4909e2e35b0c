"""Telling the owners of sessions, and hearing what they answer.

A notice counts as delivered when an outside channel has accepted it, when it was written to a terminal at which
somebody sits, or when a page of JupyterLab or a window of VS Code that somebody has before them has shown it; only then
does a deadline begin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime

from sqlalchemy import Engine as Database

from flows.core import operator_alerts
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.gateway import routes
from flows.migrations.notifications.notice import (
    Notice,
    answers,
    called_off,
    is_called_off,
    latest_pin,
    mark,
    reminder,
    to_be_reminded,
    to_be_shown,
    to_be_told,
    to_be_untold,
    when,
    wish_of,
)
from flows.migrations.planning.rollout import Action, Decision
from flows.sessions.activity.evidence import Look
from flows.sessions.activity.probes import see
from flows.sessions.activity.verdict import judge
from flows.sessions.events import Event, Kind
from flows.sessions.history import History
from flows.sessions.ide import login_notice, terminal_messages
from flows.sessions.inside import folder
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.wishes import PreferenceStore

logger = logging.getLogger("refit.migrations")

# A page that is looked at shows a notice within a tenth of a second, a window of VS Code within two.
_SHOWN_SECONDS = 3.0


@dataclass
class _Outcome:
    """By which ways a notice was delivered, and by which it wasn't, and why.

    Attributes:
        delivered: the ways that it took.
        problems: why others took it not.
        seen: a person had it before them.
        page: it was left on a page of the session, where there are buttons.
    """

    delivered: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seen: bool = False
    page: bool = False


class Notifier:
    """Tells owners, and writes down whether that was delivered."""

    def __init__(
        self,
        settings: Settings,
        sessions: Sessions,
        database: Database,
        changes: Callable[[str, str], str],
        deadline: Callable[[str], datetime | None],
        keeps: Callable[[str], float],
    ) -> None:
        """A teller.

        Args:
            settings: those in force.
            sessions: the sessions of this machine.
            database: where the history is.
            changes: says what changes between two images, in words.
            deadline: says when a session would be moved by force, were its owner told now; none: never.
            keeps: says for how many hours a session keeps what a stop would lose.
        """
        self._settings, self._sessions = settings, sessions
        self._history, self._wishes = History(database), PreferenceStore(database)
        self._changes, self._deadline, self._keeps = changes, deadline, keeps

    def tell(self, decisions: Sequence[Decision]) -> tuple[str, ...]:
        """Tell all who are to be told, and remind all who are to be; the sessions whose owners know now."""
        events = self._history.events(kinds=(Kind.noticed, Kind.withdrawn, Kind.reminded))
        lines, steps = to_be_told(decisions, events), self._settings.migration.remind_hours
        near, unseen = (
            to_be_reminded(decisions, events, self._wishes.all(), steps, now()),
            to_be_shown(decisions, events),
        )
        told_now = zip(lines, at_once(self._tell, lines), strict=True)
        shown = zip(unseen, at_once(self._show, unseen), strict=True)
        sessions_told = [line.session for line, done in (*told_now, *shown) if done]
        reminded = at_once(lambda due: self._remind(*due), near)
        return (*sessions_told, *(line.session for (line, _), done in zip(near, reminded, strict=True) if done))

    def hear(self, decisions: Sequence[Decision]) -> tuple[str, ...]:
        """Take what owners have answered on their pages as their wishes; the names of their sessions."""
        asked_owners = {(event.session, event.image) for event in self._asked()}
        lines = [line for line in decisions if (line.session, line.new) in asked_owners]
        return tuple(line.session for line, heard in zip(lines, at_once(self._hear, lines), strict=True) if heard)

    def _asked(self) -> list[Event]:
        """The notices that are on pages, where there are buttons."""
        events = self._history.events(kinds=(Kind.noticed, Kind.not_noticed))
        return [event for event in events if event.data["page"]]

    def _hear(self, line: Decision) -> bool:
        with suppress(RefitError):  # it is stopped, or moves just now
            if (pages := self._sessions.pages(self._sessions.that_runs(line.session))) is None:
                return False
            for notice in pages.notices().values():
                if not notice.answer or not notice.id.startswith(line.new):
                    continue
                if changes := wish_of(notice.answer, line.new, now(), self._pin(line), agrees=_may_agree(line)):
                    self._wishes.change(line.session, by=f"{line.session}, {pages.where}", **changes)
                    pages.forget_answer(notice.id)
                    return True
        return False

    def _pin(self, line: Decision) -> date | None:
        return latest_pin(line, self._wishes.of(line.session), self._deadline(line.session), now())

    def _tell(self, line: Decision) -> bool:
        outcome = self._deliver(line)
        text = "; ".join([*outcome.delivered, *outcome.problems])
        last = self._history.events(session=line.session, image=line.new, kinds=(Kind.not_noticed,))
        if outcome.delivered:
            self._write(Kind.noticed, line, outcome, text)
        elif not last or last[-1].what != text:  # the same is told once
            self._write(Kind.not_noticed, line, outcome, text)
        if outcome.seen:
            self._write(Kind.seen, line, outcome, text)
        return bool(outcome.delivered)

    def _write(self, kind: Kind, line: Decision, outcome: _Outcome, text: str) -> None:
        data = {"from": line.old, "page": outcome.page}
        self._history.add(kind, session=line.session, image=line.new, what=text, data=data)

    def _show(self, line: Decision) -> bool:
        """Show a notice in the session itself whose owner was told by another way."""
        outcome = self._deliver(line, again=True)
        if outcome.seen:
            self._write(Kind.seen, line, outcome, "; ".join(outcome.delivered))
        return outcome.seen

    def _remind(self, line: Decision, step: float) -> bool:
        """A process that is killed here reminds nobody twice: the reminder is written down first."""
        text, data = mark(line, step), reminder(line, step)
        self._history.add(Kind.reminded, session=line.session, image=line.new, what=text, data=data)
        outcome = self._deliver(line, step)
        message = "; ".join([*outcome.delivered, *outcome.problems])
        logger.info("%s was reminded %s: %s", line.session, mark(line, step), message)
        return bool(outcome.delivered)

    def _deliver(self, line: Decision, left: float | None = None, *, again: bool = False) -> _Outcome:
        outcome = _Outcome()
        try:
            session = self._sessions.that_runs(line.session)
            look = see(self._sessions.engine, session)
        except RefitError as error:
            notice = self._notice(line, (), left)
            outcome.problems.append(error.what)
        else:
            activity = judge(look, session.access.helpers, self._settings.idle_minutes * 60)
            notice = self._notice(line, tuple(evidence.text for evidence in activity.ending), left)
            with suppress(RefitError):  # a home that is full; a file alone tells nobody anyway
                login_notice.leave(self._sessions.engine, session, notice.text)
            at = terminal_messages.watched(look) if again else sorted(look.terminals)
            self._show_at_terminals(session, look, notice, at, outcome)
            self._show_on_pages(session, look, notice, outcome)
        if not again:
            self._send(notice, outcome)
        return outcome

    def _show_at_terminals(
        self, session: Session, look: Look, notice: Notice, at: Sequence[str], outcome: _Outcome
    ) -> None:
        try:
            took = terminal_messages.write(self._sessions.engine, session, notice.text, at)
        except RefitError as error:
            outcome.problems.append(error.what)
            return
        shown = [name for name in took if name in terminal_messages.watched(look)]
        if shown:
            outcome.delivered.append(f"shown at {_names(shown)}")
            outcome.seen = True
        if unseen := [name for name in took if name not in shown]:
            outcome.problems.append(f"it isn't sure that anybody has seen it at {_names(unseen)}")

    def _show_on_pages(self, session: Session, look: Look, notice: Notice, outcome: _Outcome) -> None:
        """It stays there until somebody looks; another call finds out whether anybody has."""
        name = notice.image if notice.left is None else f"{notice.image} {notice.left:g} h"
        try:
            if (pages := self._sessions.pages(session)) is None:
                return
            pages.leave_notice(name, notice.title, notice.text, notice.answers)
            outcome.page = True
            shown = pages.shown(name, _SHOWN_SECONDS if look.connections else 0.0)
        except RefitError as error:  # an image from before there were notices in it has no such page
            outcome.problems.append(error.why or error.what)
            return
        outcome.seen = outcome.seen or shown
        ways = outcome.delivered if shown else outcome.problems
        ways.append(f"{'shown' if shown else 'nobody has seen it yet'} {pages.where}")

    def _send(self, notice: Notice, outcome: _Outcome) -> None:
        addresses = operator_alerts.addresses_of(notice.session, self._settings, self._wishes.of(notice.session).owner)
        failures = operator_alerts.send_to(addresses, notice.title, notice.text, "notify_owners")
        if accepted := len(addresses) - len(failures):
            outcome.delivered.append(f"accepted by {accepted} of {len(addresses)} addresses")
        outcome.problems += failures
        if not outcome.delivered and not failures:
            outcome.problems.append("nobody sits at a terminal, and `notify_owners` names no address")

    def _notice(self, line: Decision, ends: tuple[str, ...], left: float | None) -> Notice:
        try:
            changes = self._changes(line.old, line.new)
        except RefitError:  # to tell who can be told is more than to tell all
            changes = ""
        return Notice(
            line.session,
            line.new,
            changes,
            ends,
            seconds=self._settings.migration.move_seconds,
            quiet=self._settings.idle_minutes,
            keeps=self._keeps(line.session),
            when=when(line),
            deadline=self._deadline(line.session),
            left=left,
            answers=answers(self._pin(line), agrees=_may_agree(line)),
            page=f"{self._settings.public_url}{routes.page(line.session)}" if self._settings.hub_wanted else "",
            command=self._has_command(line.session),
        )

    def _has_command(self, name: str) -> bool:
        session, _ = self._sessions.store.find(name) or (None, False)
        return session is not None and folder.is_there(self._settings, name)


def withdraw(settings: Settings, sessions: Sessions, history: History, image: str) -> tuple[str, ...]:
    """Tell all who were told of an image that it isn't to come any more; returns the names of their sessions.

    If it comes after all, they are told anew, and only then do their deadlines begin.
    """
    by_name = {session.name: session for session in sessions.store.sessions()}
    events = history.events(image=image, kinds=(Kind.noticed, Kind.not_noticed))
    names = to_be_untold(events, {name: session.image for name, session in by_name.items()}, image)
    at_once(lambda name: _withdraw(settings, sessions, history, by_name[name], image), names)
    return names


def _withdraw(settings: Settings, sessions: Sessions, history: History, session: Session, image: str) -> None:
    title, text = called_off(session.name, image)
    history.add(Kind.withdrawn, session=session.name, image=image)
    with suppress(RefitError):  # it is stopped
        login_notice.leave(sessions.engine, session, "")
        if pages := sessions.pages(session):
            pages.leave_notice(f"{image} off", title, text)
    owner = PreferenceStore(sessions.store.database).of(session.name).owner
    for failure in operator_alerts.send_to(
        operator_alerts.addresses_of(session.name, settings, owner), title, text, "notify_owners"
    ):
        logger.warning("%s", failure)


def remove_called_off(sessions: Sessions, history: History, session: Session) -> None:
    """Remove the notice of a move that was called off while a session was stopped; it runs again."""
    kinds = (Kind.noticed, Kind.not_noticed, Kind.withdrawn)
    if is_called_off(history.events(session=session.name, kinds=kinds)):
        with suppress(RefitError):  # it was stopped again
            login_notice.leave(sessions.engine, session, "")


def _may_agree(line: Decision) -> bool:
    """Whether an answer in the home counts as consent: a program of the image that is asked about may have written it.

    The programs of somebody else's image are that person's, and they run as the session's user. Pure.
    """
    return not line.by and line.action is not Action.skip


def _names(names: Iterable[str]) -> str:
    return ", ".join(name.removeprefix("/dev/") for name in names)
