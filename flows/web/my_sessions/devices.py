"""Login of programs on people's own machines (RFC 8628): a code is shown there, and approved on a page here."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass, replace
from threading import Lock

from flows.core.formatting import on_a_line
from flows.web.my_sessions.callers import Callers
from flows.web.my_sessions.problems import Code, Problem
from flows.web.people.scopes import Scope

CODE_SECONDS, POLL_SECONDS = 600, 2
TOKEN_SECONDS = 30 * 86_400
# Rights of such a program; to steer rollouts it has to ask for.
SCOPES = frozenset(Scope) - {Scope.operate}
_MOST_PENDING = 100
_LONGEST_NAME = 60
# No vowels, so that no code is a word, and no letter that looks like another one.
_LETTERS, _LENGTH = "BCDFGHJKLMNPQRSTVWXZ", 8


@dataclass(frozen=True)
class Asked:
    """A program that asks to be let in.

    Attributes:
        code: it is shown there, and is approved here.
        machine: the name by which the program calls its machine; nobody vouches for it.
        scopes: the rights that it asks for.
        until: when the code ends (seconds of the monotonic clock).
        person: the one who has approved; empty: nobody yet.
        denied: somebody has refused.
    """

    code: str
    machine: str
    scopes: frozenset[Scope]
    until: float
    person: str = ""
    denied: bool = False


class Devices:
    """The programs that ask. A process that ends forgets them, and they ask anew."""

    def __init__(self, callers: Callers) -> None:
        self._callers, self._lock = callers, Lock()
        self._asked: dict[str, Asked] = {}

    def begin(self, machine: str, *, operate: bool = False) -> tuple[str, Asked]:
        """Let a program ask; returns its secret, and the code that it shows.

        Args:
            machine: the name by which it calls its machine.
            operate: whether it asks for the rights of those who administer the Hub, too.

        Raises:
            Problem: too many ask.
        """
        letters = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        name = on_a_line(machine)[:_LONGEST_NAME] or "a machine without a name"
        scopes = SCOPES | {Scope.operate} if operate else SCOPES
        device = Asked(f"{letters[:4]}-{letters[4:]}", name, scopes, time.monotonic() + CODE_SECONDS)
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._asked = {key: login for key, login in self._asked.items() if login.until > time.monotonic()}
            if len(self._asked) >= _MOST_PENDING:
                raise Problem(Code.too_many, "Too many programs wait for a login.", hint="try again in ten minutes.")
            self._asked[_key(secret)] = device
        return secret, device

    def of(self, code: str) -> Asked:
        """The program that shows a code.

        Raises:
            Problem: none does, or its time is over.
        """
        return self._of(code)[1]

    def answer(self, code: str, person: str, *, approve: bool) -> Asked:
        """Let a program in as somebody, or refuse it; it is answered once.

        Raises:
            Problem: no program shows this code, or it was answered.
        """
        with self._lock:
            key, device = self._of(code)
            self._asked[key] = replace(device, person=person if approve else "", denied=not approve)
        return device

    def token(self, secret: str) -> tuple[str, frozenset[Scope]]:
        """The token of the Hub for a program that was let in, and its rights; it gets one, once. Empty: it waits.

        Raises:
            Problem: it was refused, or its time is over.
        """
        key = _key(secret)
        with self._lock:
            device = self._asked.get(key)
            if device is None or device.until < time.monotonic() or device.denied:
                self._asked.pop(key, None)
                raise Problem(
                    Code.not_yours if device and device.denied else Code.unknown,
                    "The login was not approved.",
                    hint="log in again.",
                )
            if not device.person:
                return "", device.scopes
            del self._asked[key]
        note = f"refit on {device.machine}"
        return self._callers.new_token(device.person, device.scopes, TOKEN_SECONDS, note), device.scopes

    def _of(self, code: str) -> tuple[str, Asked]:
        letters = "".join(letter for letter in code.upper() if letter in _LETTERS)
        for key, login in list(self._asked.items()):
            waits = not login.person and not login.denied and login.until > time.monotonic()
            if waits and secrets.compare_digest(login.code.replace("-", ""), letters):
                return key, login
        raise Problem(Code.unknown, "No program shows this code.", why="It was answered, or is too old.")


def _key(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
