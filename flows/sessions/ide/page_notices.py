"""Notices on the pages of an IDE: those that somebody looks at show one, and say so; its buttons are answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from flows.core.waiting import wait_until
from flows.sessions.engine import Engine
from flows.sessions.model import Session

PAUSE_SECONDS = 0.02
_LIMIT = 30.0
# In the home, beside the notice: the answer to it. Renamed when it is whole, for pages look at any time.
_HEARD = ".heard"
_WRITE = 'cd && mkdir -p "${1%/*}" && cat >"$1.draft" && mv -T "$1.draft" "$1"'
# The owner of the home may have written there whatever they like, and as much.
_READ = 'cd && head -c 10000 "$1" 2>/dev/null || true'
# Only where there is none: the first one stays.
_ADD = 'cd && mkdir -p "${1%/*}" && cat >"$1.more" && { ln -T "$1.more" "$1" 2>/dev/null || true; } && rm -f "$1.more"'
_REMOVE_NOTICE = 'cd && rm -f "$1"'
_REMOVE = 'cd && rm -f "$1" "$1.heard"'


@dataclass(frozen=True)
class OnPage:
    """A notice as pages know it: whether one that somebody looks at has shown it, what was answered, and whether it was
    closed (JupyterLab alone says so)."""

    id: str
    shown: bool
    answer: str
    closed: bool = False


@dataclass(frozen=True)
class _Left:
    """The part of a notice by which it is known."""

    id: str


_ON_PAGE, _LEFT = TypeAdapter(OnPage), TypeAdapter(_Left)


class Pages(ABC):
    """The pages of a session's IDE that are open. All failures are `RefitError`."""

    where: str
    """In words: where the notice is."""
    comes_back: str
    """In a sentence: how a page that is open finds a session again that was away."""

    @abstractmethod
    def leave_notice(self, id: str, title: str, text: str, answers: Sequence[tuple[str, str]] = ()) -> None:
        """Let the pages that are open show a notice, with a button for each answer (what it means, its label).

        Doesn't count as activity.
        """

    @abstractmethod
    def notices(self) -> Mapping[str, OnPage]:
        """Id → what became of that notice."""

    @abstractmethod
    def forget_answer(self, id: str) -> None:
        """Removes the answer to that notice, which has been heard."""

    def shown(self, id: str, limit: float) -> bool:
        """Whether a page has shown that notice; waits for it up to `limit` seconds."""

        def seen() -> bool:
            notice = self.notices().get(id)
            return notice is not None and notice.shown

        return wait_until(seen, seconds=limit, pause=PAUSE_SECONDS)


class Windows(Pages):
    """The windows of an IDE that finds its notice in a file, as VS Code does by an extension in Refit's images."""

    where = "in VS Code"
    comes_back = "Load this window again once it is back."

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine, self._session = engine, session

    def leave_notice(self, id: str, title: str, text: str, answers: Sequence[tuple[str, str]] = ()) -> None:
        """As `Pages.leave_notice`; one notice takes the place of another."""
        self._do(_WRITE, stdin=json.dumps({"id": id, "title": title, "text": text, "answers": list(answers)}))

    def add_notice(self, id: str, title: str, text: str, *, kind: str) -> None:
        """Let the windows show a notice for which no other one goes but those whose ids begin with `kind`."""
        try:
            left = _LEFT.validate_json(self._do(_READ)).id
        except ValidationError:  # there is none, or one that stays
            left = ""
        if left.startswith(kind):
            self._do(_REMOVE_NOTICE)
        self._do(_ADD, stdin=json.dumps({"id": id, "title": title, "text": text, "answers": []}))

    def notices(self) -> Mapping[str, OnPage]:
        """As `Pages.notices`; an entry that can't be understood is none, for people may write there what they like."""
        try:
            notices = _ON_PAGE.validate_json(self._do(_READ, _HEARD))
        except ValidationError:
            return {}
        return {notices.id: notices}

    def forget_answer(self, id: str) -> None:
        """As `Pages.forget_answer`."""
        self._do(_WRITE, _HEARD, stdin=json.dumps({"id": id, "shown": True, "answer": ""}))

    def remove(self) -> None:
        """There is nothing to be told any more."""
        self._do(_REMOVE)

    def _do(self, script: str, suffix: str = "", stdin: str = "") -> str:
        file = f"{self._session.access.notices}{suffix}"
        return self._engine.execute(self._session.container, ["sh", "-c", script, "sh", file], stdin, _LIMIT)
