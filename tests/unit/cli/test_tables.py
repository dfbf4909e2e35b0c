"""Results in terminals of any width."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from typer.main import get_command

from flows.catalog.model import Access
from flows.cli import main, session_tables, tables
from flows.images.plan import Plan
from flows.services import ServiceState
from flows.sessions.activity.evidence import Evidence, Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.model import HomeRef, Running, Session, TokenRef
from flows.sessions.overview import Status

URL = "http://127.0.0.1:25010"
WHY = "the image was never tested, so nobody is moved to it until it was"


def shown(table: Table, terminal: int) -> str:
    text = io.StringIO()
    Console(file=text, width=max(terminal, tables.least_width(table))).print(table)
    return text.getvalue()


def service(uptime: float) -> ServiceState:
    return ServiceState(
        "registry", "The registry", True, True, 24264, uptime, URL, 25010, Path("/home/logs/registry.log")
    )


@pytest.mark.parametrize("terminal", [20, 80, 120])
def test_what_people_copy_is_never_broken(terminal: int) -> None:
    row = ("jupyter-minimal-deb12-py311_2026a_20261121.1", URL, "24264", WHY)
    text = shown(tables.table("Things", ("tag", "url", "pid", "why"), [row]), terminal)
    assert all(cell in text for cell in row[:3])
    assert all(word in text for word in WHY.split())


def test_a_table_fits_into_its_terminal_where_it_can() -> None:
    text = shown(tables.table("Moves", ("session", "result", "why"), [("ada", "moved", WHY), ("bob", None, "")]), 50)
    assert max(map(len, text.splitlines())) <= 50
    assert len(text.splitlines()) > 4


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    assert "psycopg[binary]" in shown(tables.table("", ("package",), [("psycopg[binary]",)]), 80)


@pytest.mark.parametrize(("uptime", "words"), [(48.0, "48 s"), (2742.0, "46 min"), (9000.0, "2 h"), (400_000.0, "5 d")])
def test_the_services_fit_into_80_columns(uptime: float, words: str) -> None:
    text = shown(tables.service_states([service(uptime)]), 80)
    assert words in text and max(map(len, text.splitlines())) <= 80


def commands(command: object, *path: str) -> list[tuple[tuple[str, ...], object]]:
    paths = [(path, command)]
    for name, child in getattr(command, "commands", {}).items():
        paths += commands(child, *path, name)
    return paths


@pytest.mark.parametrize(("path", "command"), commands(get_command(main.app)), ids=lambda value: str(value)[:40])
def test_every_command_and_each_of_its_words_is_explained(path: tuple[str, ...], command: object) -> None:
    explained = {parameter.name: parameter.help for parameter in command.params}
    assert command.help, path
    assert all(explained.values()), explained
    # Placeholders are in capitals, everywhere.
    assert all(re.fullmatch("[A-Z-]+", p.metavar or "") for p in command.params if p.param_type_name == "argument")


def test_a_plan_in_which_nothing_can_be_planned_promises_nothing() -> None:
    assert tables.planned(Plan({})) == "No stage can be planned."


@pytest.mark.parametrize("terminal", [80, 120])
def test_sessions_keep_their_names_whole_and_have_urls_where_there_is_room(terminal: int) -> None:
    profile, url = "jupyter-datascience-deb12-py311", f"{URL}/session/ada"
    session = Session("ada", profile, "2026a", f"sha256:{64 * 'a'}", 1, HomeRef("/home"), TokenRef("/token"), Access())
    text = shown(session_tables.sessions([Status(session, Running.running, True)], {"ada": url}, terminal), terminal)
    assert profile in text and max(map(len, text.splitlines())) <= terminal
    assert (url in text) is (terminal > 80)


def test_activity_says_when_a_session_is_free_and_why_it_is_busy() -> None:
    said = {
        Verdict.busy: ("runs: sleep 900, pid 8", "no"),
        Verdict.state: ("open: nano x", "8 h later, if its owner has seen a notice"),
        Verdict.idle: ("at its prompt: bash", "yes"),
    }
    seen = [
        Seen("ada", verdict, datetime(2026, 11, 25, tzinfo=UTC), verdict is Verdict.idle, (Evidence(verdict, why),))
        for verdict, (why, _) in said.items()
    ]
    text = shown(session_tables.activity(seen, 8), 200)
    for why, free in said.values():
        assert why in text and free in text


def test_a_session_with_an_owner_who_cannot_log_in_says_what_is_missing() -> None:
    said = session_tables.unowned([f"s{number}" for number in range(12)])
    assert "s0, s1" in said and "s9 …" in said and "s10" not in said
    assert all(
        word in said for word in ("`refit user invite NAME`", "`refit session owner SESSION NAME`", "`hub: false`")
    )
    said = session_tables.without_hub("ada")
    assert "ada can't log in" in said and "`hub: true`" in said and "`refit user invite ada`" in said
