"""Servers of a JupyterHub that isn't Refit's: the Hub stops them, and starts them again with another image."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from flows.core import fence, outside
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.sessions.activity.evidence import Look
from flows.sessions.ide import asking
from flows.sessions.ide.jupyter import Jupyter, wait_answer
from flows.sessions.model import Session
from flows.sessions.others.hub_answers import NEEDED, HubServer, entrance, lacking, look_of, refused, role, servers_of
from flows.sessions.others.images import OwnImages, session_on
from flows.sessions.others.model import OF_HUB, WRITTEN, Owned, SomebodyElse, Stopped, name_of, owner_of

# In `Session.environment`: the options with which its owner started the server, for the way back.
_OPTIONS = "options"
_PAUSE_SECONDS = 0.5
_CELL, _CELL_SAYS = "6 * 7", "42"
_TOKEN_BYTES = 4096
# A token for a server is good for so long, and is used for less.
_ENTRANCE_SECONDS, _USED_SECONDS = 3600, 3000.0
_STOPPED_ALREADY = (HTTPStatus.NO_CONTENT, HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST)


class HubServers:
    """Implements `Keeper` for the servers of one Hub."""

    kind = "JupyterHub"
    lacks = (
        "no snapshot of its home, no rehearsal, no warm start: its Hub stops the server and starts another; programs "
        "outside of its kernels aren't seen"
    )

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked of the Hub yet."""
        hub = settings.others.hub
        self._api, self._token_file, self._option = hub.api, hub.token_file, hub.image_option
        self._seconds, self._ready_seconds = hub.start_minutes * 60, settings.ready_timeout_seconds
        self._images = OwnImages(settings)
        self._entrances: dict[tuple[str, str], tuple[float, str]] = {}

    @cached_property
    def _token(self) -> str:
        assert self._token_file  # the settings hold it
        try:
            with self._token_file.open(encoding="ascii") as file:
                if self._token_file.stat().st_mode & 0o077:
                    raise RefitError(
                        f"Others can read the token of the Hub in {self._token_file}.",
                        hint=f"`chmod 600 {self._token_file}`, and let the Hub have another token.",
                    )
                return file.read(_TOKEN_BYTES).strip()
        except (OSError, ValueError) as error:
            raise RefitError(f"The token of the Hub in {self._token_file} can't be read.", why=str(error)) from None

    @cached_property
    def _client(self) -> httpx.Client:
        return self._client_with(self._token)

    def _client_with(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"token {token}"}
        verify = outside.trusted_by_default(self._api)
        client = httpx.Client(headers=headers, trust_env=False, verify=verify, timeout=30.0)
        outside.keep_deadlines(client)
        return client

    def _entrance(self, of: HubServer) -> str:
        """A token that opens this server alone, for a server may keep whatever it is shown."""
        entered_at, token = self._entrances.get((of.user, of.name), (-math.inf, ""))
        if time.monotonic() - entered_at > _USED_SECONDS:
            entered_at, path = time.monotonic(), f"/users/{quote(of.user, safe='')}/tokens"
            token = str(self._ask("POST", path, json=entrance(of, _ENTRANCE_SECONDS)).json()["token"])
            self._entrances[of.user, of.name] = entered_at, token
        return token

    def _ask(self, method: str, path: str, *accepted: int, **options: Any) -> httpx.Response:
        if method != "GET":
            fence.check()
        try:
            answer = asking.ask(self._client, method, self._api + path, **options)
        except httpx.HTTPError as error:
            raise RefitError(
                f"The Hub at {self._api} doesn't answer.", why=str(error), hint="see the Hub's log."
            ) from error
        if answer.is_success or answer.status_code in accepted:
            return answer
        raise refused(self._api, f"{method} {path}", answer.status_code, answer.text)

    def see(self) -> tuple[Owned, ...]:
        """All servers that run, or are about to.

        Raises:
            RefitError: the Hub doesn't answer, or doesn't let its token do what is needed.
        """
        scopes = self._ask("GET", "/user").json().get("scopes") or ()
        if lacks := lacking(scopes):
            raise RefitError(
                f"The token of the Hub at {self._api} lacks rights: {', '.join(lacks)}.",
                hint=f"write into jupyterhub_config.py, and start the Hub anew:\n{role(NEEDED)}",
            )
        return tuple(self._owned(each) for each in self._servers())

    def _servers(self) -> Iterator[HubServer]:
        offset: int | None = 0
        headers = {"Accept": "application/jupyterhub-pagination+json"}
        while offset is not None:
            users = self._ask("GET", f"/users?state=active&offset={offset}&limit=200", headers=headers).json()
            items, paging = (users, {}) if isinstance(users, list) else (users["items"], users["_pagination"])
            for user in items:
                yield from servers_of(user, self._option)
            offset = (paging.get("next") or {}).get("offset")

    def _owned(self, of: HubServer) -> Owned:
        image = self._images.of(of.image) if of.image else None
        trouble = ""
        if not of.image:
            trouble = f"its Hub doesn't say on which image it is: its options have no {self._option!r}"
        elif image is None:
            trouble = f"its image isn't one of Refit's: {of.image}"
        session = session_on(
            image,
            name=name_of(OF_HUB, of.user, *([of.name] if of.name else [])),
            environment={WRITTEN: of.image, _OPTIONS: json.dumps(of.options, sort_keys=True)},
            owned_by=f"{self.kind}/{quote(of.user, safe='')}/{quote(of.name, safe='')}",
        )
        return Owned(session, of.ready, trouble)

    def find(self, session: Session) -> Owned | None:
        """The same server as it is now, running or not; none: its person is gone."""
        user, name = _names(session)
        answer = self._ask("GET", f"/users/{quote(user, safe='')}", HTTPStatus.NOT_FOUND)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        return self._owned(_that(answer.json(), user, name, self._option))

    def _server(self, session: Session) -> HubServer:
        user, name = _names(session)
        answer = self._ask("GET", f"/users/{quote(user, safe='')}", HTTPStatus.NOT_FOUND)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise SomebodyElse(f"The person of the {owner_of(session)} is gone.")
        return _that(answer.json(), user, name, self._option)

    def look(self, session: Session) -> Look:
        """Ask the server itself, through the Hub's proxy: for its kernels, its terminals, and when it was last used."""
        server = self._server(session)
        answers: dict[str, Any] = {}
        with self._client_with(self._entrance(server)) as client:
            for path in ("status", "kernels", "terminals"):
                url = f"{self._url(server)}/api/{path}?no_track_activity=1"
                try:
                    answer = asking.ask(client, "GET", url, seconds=30.0)
                except httpx.HTTPError as error:
                    raise RefitError(f"The {owner_of(session)} doesn't answer.", why=str(error)) from error
                if not answer.is_success:
                    self._entrances.pop((server.user, server.name), None)
                    raise RefitError(f"The {owner_of(session)} answers {answer.status_code} to /api/{path}.")
                answers[path] = answer.json()
        return look_of(now().timestamp(), answers)

    def _url(self, of: HubServer) -> str:
        """Where a server is reached: through the Hub's proxy."""
        place = urlsplit(self._api)
        return f"{place.scheme}://{place.netloc}{of.url.rstrip('/')}"

    def check(self, before: Session, after: Session) -> str:
        """Its options are on record for the way back."""
        server = self._server(before)
        if server.pending:
            raise RefitError(f"The Hub is at work on the {owner_of(before)} just now: {server.pending}.")
        return ""

    def put(self, before: Session, after: Session) -> None:
        """Let the Hub stop the server; it is told the image when it starts it again."""
        server = self._server(before)
        if not server.is_there:
            return
        if server.image == self._image(after):
            return
        if server.image != self._image(before):
            raise SomebodyElse(
                f"The {owner_of(before)} was started by somebody else, with {server.image or 'no image'}."
            )
        self._ask("DELETE", _path(before), *_STOPPED_ALREADY)
        gone = wait_until(lambda: not self._server(before).is_there, seconds=self._seconds, pause=_PAUSE_SECONDS)
        if not gone:
            raise RefitError(
                f"The Hub doesn't stop the {owner_of(before)} within {self._seconds:g} s.", hint="see the Hub's log."
            )

    def start(self, session: Session) -> None:
        """Let the Hub start the server with its image, unless somebody has started it meanwhile."""
        server = self._server(session)
        if not server.is_there:
            options = {**self._options(session), self._option: self._image(session)}
            # Where its person was quicker, the Hub refuses, and what there is decides.
            self._ask("POST", _path(session), HTTPStatus.BAD_REQUEST, json=options)
        self._await_ready(session)

    def _await_ready(self, session: Session) -> None:
        seen = wait_until(
            lambda: self._server(session),
            enough=lambda server: server.ready or not server.pending,
            seconds=self._seconds,
            pause=_PAUSE_SECONDS,
        )
        if not seen.is_there:
            raise RefitError(
                f"The Hub didn't start the {owner_of(session)}, or somebody has stopped it.", hint="see the Hub's log."
            )
        if seen.image != self._image(session):
            raise SomebodyElse(f"The {owner_of(session)} was started with {seen.image or 'no image'}, not by Refit.")
        if not seen.ready:
            raise RefitError(
                f"The Hub doesn't start the {owner_of(session)} within {self._seconds:g} s.", hint="see the Hub's log."
            )

    def prove(self, session: Session) -> str:
        """The IDE answers through the Hub's proxy, and, of Jupyter, a kernel executes a cell."""
        server = self._server(session)
        if not server.ready:
            raise Stopped(f"The {owner_of(session)} doesn't run.")
        url, limit = self._url(server), self._ready_seconds * session.access.patience
        if session.access.protocol != "jupyter":
            wait_answer(url + session.access.health, limit)
            return ""
        jupyter = Jupyter(url, self._entrance(server))
        jupyter.wait_ready(session.access.health, limit)
        if (output := jupyter.execute(_CELL).strip()) != _CELL_SAYS:
            raise RefitError(f"A kernel answered {output!r} to {_CELL!r}.")
        return ""

    def _image(self, session: Session) -> str:
        """The name of a session's image: as its owner wrote it, for the one that it had."""
        written = session.environment.get(WRITTEN, "")
        return written if session.generation == 1 and written else self._images.reference(session.image)

    def _options(self, session: Session) -> Mapping[str, Any]:
        options: Mapping[str, Any] = json.loads(session.environment.get(_OPTIONS, "{}"))
        return options


def _names(session: Session) -> tuple[str, str]:
    _, user, name = session.owned_by.split("/")
    return unquote(user), unquote(name)


def _path(session: Session) -> str:
    _, user, name = session.owned_by.split("/")
    return f"/users/{user}/servers/{name}" if name else f"/users/{user}/server"


def _that(user: Mapping[str, Any], person: str, name: str, option: str) -> HubServer:
    servers = (each for each in servers_of(user, option) if each.name == name)
    return next(servers, HubServer(person, name))
