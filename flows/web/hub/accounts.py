"""Accounts of people: by invitation, each with a password of their own. Nobody signs up by themselves.

An invitation is a code that works once, for some days. The file in the folder has its hash and the name of the account.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import bcrypt
from jupyterhub.handlers import BaseHandler
from nativeauthenticator.nativeauthenticator import NativeAuthenticator
from nativeauthenticator.orm import UserInfo
from tornado import web  # type: ignore[attr-defined]
from traitlets import Unicode

from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.settings import Settings

SHORTEST_PASSWORD = 10
LONGEST_NAME = 200  # the Hub's database has room for 255
_LONGEST_PASSWORD = 72  # bytes; bcrypt looks at no more
_FORM = "invitation.html"


@dataclass(frozen=True)
class Invitation:
    """The account that it makes, until when (seconds since 1970), and whether they administer the Hub."""

    person: str
    until: float
    admin: bool = False


def folder(settings: Settings) -> Path:
    """Where invitations are, whether the Hub runs or not."""
    return settings.folder("services", "hub", "invitations")


def invite(place: Path, person: str, seconds: float, *, admin: bool = False) -> str:
    """Write an invitation; returns its code. An older one of this person is removed, and all that have expired.

    Raises:
        RefitError: nobody can be called so.
    """
    if problem := why_no_name(person):
        raise RefitError(f"{person!r} can't be the name of a person.", why=problem, hint="choose another name.")
    for file in place.iterdir():
        invitations = _read(file)
        if invitations is None or invitations.person == person:
            file.unlink(missing_ok=True)
    code = secrets.token_urlsafe(32)
    document = json.dumps(asdict(Invitation(person, time.time() + seconds, admin)))
    write_whole(place / _name(code), document, private=True)
    return code


def why_no_name(person: str) -> str:
    """Why nobody can be called so; empty: one can. Pure."""
    if not person or person != person.strip() or person != person.lower():
        return "A name isn't empty, has no spaces around it and no capitals: the Hub makes them small."
    if len(person) > LONGEST_NAME or not person.isprintable() or any(char in person for char in "/, "):
        return f"A name has at most {LONGEST_NAME} characters, and no slash, comma or space."
    return ""


def look(place: Path, code: str) -> Invitation | None:
    """The invitation with this code; none: it was used, has expired, or never was."""
    return _read(place / _name(code))


def take(place: Path, code: str) -> Invitation | None:
    """As `look`, and the code works no more: of two who come at once, one gets it."""
    invitation = look(place, code)
    with suppress(FileNotFoundError):
        (place / _name(code)).unlink()
        return invitation
    return None


def _read(file: Path) -> Invitation | None:
    try:
        invitation = Invitation(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return invitation if time.time() < invitation.until else None


def _name(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def why_no_password(password: str, again: str) -> str:
    """Why a password can't be one; empty: it can. Pure."""
    if password != again:
        return "The two passwords differ."
    if len(password) < SHORTEST_PASSWORD:
        return f"A password has at least {SHORTEST_PASSWORD} characters."
    if len(password.encode()) > _LONGEST_PASSWORD or "\0" in password:
        return f"A password has at most {_LONGEST_PASSWORD} bytes."
    return ""


class InvitedAuthenticator(NativeAuthenticator):
    """Accounts with passwords, made by invitation alone."""

    invitations = Unicode(help="Folder with the invitations.", config=True)

    def make_account(self, invitation: Invitation, password: str) -> None:
        """Make the account of an invitation, or give it another password if it is there."""
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt())
        account = self.get_user(invitation.person)
        if account is None:
            account = UserInfo(username=invitation.person, is_authorized=True)
            self.db.add(account)
        account.password, account.is_authorized = hashed, True
        self.db.commit()

    def get_handlers(self, app: Any) -> list[tuple[str, type[BaseHandler]]]:
        """The pages of passwords and invitations; none to sign up or to be approved. To log in, the Hub has its own."""
        # That of nativeauthenticator 1.3.0 needs `statsd`, which JupyterHub 6 has no more.
        kept = ("/change-password", "/change-password/([^/]+)")
        own = cast(Sequence[tuple[str, type[BaseHandler]]], super().get_handlers(app))
        return [*(handler for handler in own if handler[0] in kept), (r"/invite", InvitationHandler)]


class InvitationHandler(BaseHandler):
    """The page of an invitation: the person chooses a password, and is logged in."""

    async def get(self) -> None:
        """Show the form; looking at it uses nothing up."""
        await self._show(self._invitation(), "")

    async def post(self) -> None:
        """Make the account, if the password can be one; then the code works no more."""
        invitation, code = self._invitation(), self.get_argument("code")
        password = self.get_body_argument("password", strip=False)
        if problem := why_no_password(password, self.get_body_argument("again", strip=False)):
            return await self._show(invitation, problem)
        if take(Path(self.authenticator.invitations), code) is None:
            raise web.HTTPError(410, "This invitation was used already.")
        self.authenticator.make_account(invitation, password)
        user = await self.auth_to_user({"name": invitation.person, "admin": invitation.admin or None})
        self.set_login_cookie(user)
        self.redirect(f"{self.hub.base_url}home")
        return None

    def _invitation(self) -> Invitation:
        invitation = look(Path(self.authenticator.invitations), self.get_argument("code", ""))
        if invitation is None:
            raise web.HTTPError(410, "This invitation was used already, or has expired. Ask for another one.")
        return invitation

    async def _show(self, invitation: Invitation, problem: str) -> None:
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.set_status(400 if problem else 200)
        words = {"person": invitation.person, "problem": problem, "shortest": SHORTEST_PASSWORD}
        self.finish(await self.render_template(_FORM, code=self.get_argument("code"), **words))
