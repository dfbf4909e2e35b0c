"""The responses of the waiting page, to browsers and to programs."""

from __future__ import annotations

import asyncio
import json

import httpx

from flows.waiting_page.app import WaitingPage, application


def ask(waiting_page: WaitingPage, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=application(waiting_page))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(asked())


def test_browsers_get_a_page_and_programs_json_both_503_and_for_now(waiting_page: WaitingPage) -> None:
    browser = ask(waiting_page, "/session/ada/lab?token=secret", Accept="text/html,*/*;q=0.8")
    program = ask(waiting_page, "/session/ada/api/contents/x", "PUT")
    for answer in (browser, program):
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert (answer.headers["Cache-Control"], answer.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert browser.headers["Content-Type"].startswith("text/html")
    assert "ada was stopped" in browser.text and "secret" not in browser.text
    assert program.json()["why"] == json.loads(program.content)["why"] == "stopped"


def test_nobody_is_let_in_who_is_not_there(waiting_page: WaitingPage) -> None:
    for path in ("/", "/session/eve/lab", "/session/../ada", "/elsewhere"):
        answer = ask(waiting_page, path, Accept="text/html")
        assert answer.status_code == 404 and "Retry-After" not in answer.headers
