"""A Jupyter server, spoken to over its API. The token travels in a header, never in a URL: URLs are logged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import TypeAdapter, ValidationError
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.programs.command import FOREIGN_OUTPUT
from flows.core.waiting import wait_until
from flows.sessions.ide import asking
from flows.sessions.ide.asking import ask
from flows.sessions.ide.page_notices import PAUSE_SECONDS, OnPage, Pages

_ASK_ALIVE_SECONDS = 1.0
_ANSWER_SECONDS = 30.0
# Servers are on this machine: one that doesn't take up a connection at once is gone, and nobody says so.
_CONNECT_SECONDS = 1.0
_NOTICES = "/refit/notices"
_TERMINALS = "/refit/terminals"


class JupyterError(RefitError):
    """The server doesn't answer, or refuses; its log says more, unless an error has a `hint` of its own."""

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint or "`refit session logs NAME` shows the last lines that it wrote.")


_ON_PAGE = TypeAdapter(list[OnPage])


class Jupyter(Pages):
    """The server at `url`, e.g. `http://127.0.0.1:18000`. All failures are `JupyterError`."""

    where = "in JupyterLab"
    comes_back = "This page finds it again by itself."

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"token {token}"}
        self._client = asking.client(base_url=self._url, headers=self._headers, timeout=_within(_ANSWER_SECONDS))

    def wait_ready(self, path: str, limit: float, alive: Callable[[], bool] = lambda: True) -> float:
        """Wait until the server lets us in; returns the seconds that it took.

        Args:
            path: the path that answers 200 once it is ready, e.g. `/api`.
            limit: seconds after which waiting is given up.
            alive: asked every second; once it says no, waiting is given up.

        Raises:
            JupyterError: it was not ready in time, or refuses the token.
        """
        seconds = wait_answer(self._url + path, limit, alive)
        self._send("GET", "/api/status?no_track_activity=1")
        return seconds

    def used(self, limit: float = _ANSWER_SECONDS) -> bool:
        """Whether anybody has used the server since it started. To ask doesn't count as activity.

        Raises:
            JupyterError: it doesn't say so within `limit` seconds.
        """
        status = self._send("GET", "/api/status?no_track_activity=1", timeout=_within(limit), seconds=limit).json()
        return bool(status["last_activity"] != status["started"] or status["connections"] or status["kernels"])

    def execute(self, code: str, limit: float = 60.0) -> str:
        """Start a kernel, let it execute one cell, end it; returns what the cell printed and its value, as text.

        Raises:
            JupyterError: the cell raised an exception, or didn't end within `limit` seconds.
        """
        kernel = self._send("POST", "/api/kernels").json()["id"]
        try:
            return self._executed(kernel, code, time.monotonic() + limit)
        except (TimeoutError, OSError, WebSocketException) as error:
            why = str(error) or f"It didn't end within {limit:g} s."
            raise JupyterError(f"A kernel at {self._url} didn't execute a cell.", why=why) from error
        finally:
            with fence.lifted():  # it is ours alone
                self._send("DELETE", f"/api/kernels/{kernel}", accepted=(204, 404))

    def open_document(self, path: str, name: str, kind: str, kernel: str) -> None:
        """Give a document a kernel of that name, unless it has one; pages that have it open find it by its path."""
        self._send("POST", "/api/sessions", json={"path": path, "name": name, "type": kind, "kernel": {"name": kernel}})

    def open_terminal(self, name: str) -> None:
        """Open a terminal by that name, unless there is one."""
        answer = self._send("GET", f"/api/terminals/{quote(name, safe='')}?no_track_activity=1", accepted=(200, 404))
        if answer.status_code == 404:
            self._send("POST", "/api/terminals", json={"name": name})

    def await_terminals(self, names: Sequence[str]) -> None:
        """Let terminals by these names be there, and empty, as soon as a page asks which there are.

        Doesn't count as activity. Servers of images that are older than the extension `refit_terminals` ignore it.
        """
        self._send("POST", _TERMINALS, accepted=(204, 404), json={"names": list(names)})

    def leave_notice(self, id: str, title: str, text: str, answers: Sequence[tuple[str, str]] = ()) -> None:
        """Let the pages that are open show a notice, with a button for each answer (what it means, its label).

        Doesn't count as activity. Needs the server extension `refit_notices` of Refit's images.
        """
        self._send("POST", _NOTICES, json={"id": id, "title": title, "text": text, "answers": list(answers)})

    def notices(self) -> dict[str, OnPage]:
        """Id → what became of that notice."""
        try:
            listed = _ON_PAGE.validate_json(self._send("GET", _NOTICES).content)
        except ValidationError as error:  # people may run what they like in their session
            raise JupyterError(f"The notices at {self._url} can't be understood.", why=str(error)) from None
        return {kernel.id: kernel for kernel in listed}

    def forget_answer(self, id: str) -> None:
        """Removes the answer to that notice, which has been heard."""
        self._send("POST", _NOTICES, json={"id": id, "answer": ""})

    def write_file(self, path: str, content: str) -> None:
        """Write a text file into the home; its folder has to be there."""
        self._write(path, {"type": "file", "format": "text", "content": content})

    def write_notebook(self, path: str, cells: Sequence[str]) -> None:
        """Write a notebook with these cells of code into the home; its folder has to be there."""
        self._write(path, {"type": "notebook", "format": "json", "content": notebook(cells)})

    def _write(self, path: str, model: dict[str, Any]) -> None:
        self._send("PUT", _contents(path), accepted=(200, 201), json=model)

    def _executed(self, kernel: str, code: str, deadline: float) -> str:
        address = f"ws{self._url.removeprefix('http')}/api/kernels/{kernel}/channels"
        bounds: dict[str, Any] = {"max_size": FOREIGN_OUTPUT, "close_timeout": _CONNECT_SECONDS}
        with connect(address, additional_headers=self._headers, proxy=None, **bounds) as channel:
            request = execute_request(code)
            channel.send(json.dumps(request))
            return output(_replies(channel, request["header"]["msg_id"], deadline))

    def _send(self, method: str, path: str, accepted: Sequence[int] = (200, 201), **options: Any) -> httpx.Response:
        if method != "GET":
            fence.check()
        try:
            answer = ask(self._client, method, path, **options)
        except httpx.HTTPError as error:
            raise JupyterError(f"The Jupyter server at {self._url} doesn't answer.", why=str(error)) from error
        if answer.status_code not in accepted:
            raise JupyterError(
                f"The Jupyter server at {self._url} refuses: {method} {path.partition('?')[0]}.",
                why=f"It answers {answer.status_code}: {answer.text[:200]}",
            )
        return answer


def wait_answer(url: str, limit: float, alive: Callable[[], bool] = lambda: True) -> float:
    """Wait until `url` answers 200; returns the seconds that it took. Arguments as in `Jupyter.wait_ready`.

    Raises:
        JupyterError: it didn't, in `limit` seconds or as long as `alive` said yes.
    """
    started = last_asked = time.monotonic()
    why = ""
    with asking.client(timeout=_within(limit)) as client:

        def is_ready() -> bool:
            nonlocal last_asked, why
            present = time.monotonic()
            try:
                answer = ask(client, "GET", url, seconds=limit - (present - started))
                if answer.status_code == 200:
                    return True
                why = f"It answers {answer.status_code}."
            except httpx.TimeoutException as error:  # the last one ends with the limit, and says less than an answer
                why = why or str(error)
            except httpx.HTTPError as error:
                why = str(error) or why
            if present - last_asked > _ASK_ALIVE_SECONDS:
                last_asked = present
                if not alive():
                    raise JupyterError(
                        f"Nothing is ready at {url}.", why="The program that should answer there has ended."
                    )
            return False

        if wait_until(is_ready, seconds=limit - PAUSE_SECONDS, pause=PAUSE_SECONDS):
            return time.monotonic() - started
    raise JupyterError(f"Nothing was ready at {url} within {limit:g} s.", why=why)


def _within(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))


_ASKS = "let the start script of the IDE's recipe switch its login on, and build the image again."


def check_page(url: str, page: str, token: str) -> None:
    """Open a page with its token, as a browser does, and without.

    Args:
        url: address of the IDE.
        page: path of the page; `{token}` in it is replaced.
        token: the token that lets people in.

    Raises:
        JupyterError: it isn't there for its owner, or it is for everybody.
    """
    try:
        with asking.client(timeout=_ANSWER_SECONDS) as browser:
            stranger = ask(browser, "GET", url + page.replace("{token}", ""))
            owner = ask(browser, "GET", url + page.replace("{token}", token), follow_redirects=True)
    except httpx.HTTPError as error:
        raise JupyterError(f"The page at {url} doesn't answer.", why=str(error)) from error
    if stranger.is_success:
        raise JupyterError(
            f"The page at {url} opens without its token.", why="Anybody could work in this session.", hint=_ASKS
        )
    if not owner.is_success or owner.url.path.endswith("/login"):
        raise JupyterError(f"The page at {url} doesn't open with its token.", why=f"It answers {owner.status_code}.")


def notebook(cells: Sequence[str]) -> dict[str, Any]:
    """A notebook (nbformat 4.5) with these cells of code. Pure."""
    blank: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    written = [{**blank, "id": f"cell-{number}", "source": cell} for number, cell in enumerate(cells)]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": written}


def execute_request(code: str) -> dict[str, Any]:
    """The message that asks a kernel to execute a cell: jupyter-client.readthedocs.io, "Messaging"."""
    header = {"msg_id": uuid4().hex, "msg_type": "execute_request", "session": uuid4().hex, "version": "5.3"}
    request = {"silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    return {
        "channel": "shell",
        "header": {**header, "username": "refit", "date": ""},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "stop_on_error": True, **request},
        "buffers": [],
    }


def output(replies: Iterator[dict[str, Any]]) -> str:
    """The text of a cell's output, from the messages that answer its request. Pure.

    Raises:
        JupyterError: the cell raised an exception.
    """
    text: list[str] = []
    for reply in replies:
        kind, content = reply["header"]["msg_type"], reply["content"]
        if kind == "stream":
            text.append(content["text"])
        elif kind in ("execute_result", "display_data"):
            text.append(content["data"].get("text/plain", "") + "\n")
        elif kind == "error":
            raise JupyterError("A cell raised an exception.", why=f"{content['ename']}: {content['evalue']}")
        elif kind == "status" and content["execution_state"] == "idle":
            break
    return "".join(text)


def _replies(channel: Connection, request: str, deadline: float) -> Iterator[dict[str, Any]]:
    remaining = FOREIGN_OUTPUT
    while remaining > 0:
        if (seconds := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        told = channel.recv(timeout=seconds)
        remaining -= len(told)
        message = json.loads(told)
        if message["parent_header"].get("msg_id") == request:
            yield message
    raise JupyterError("A kernel answers a cell without end.", why=f"It has sent {FOREIGN_OUTPUT} bytes.")


def _contents(path: str) -> str:
    return f"/api/contents/{quote(path)}"
