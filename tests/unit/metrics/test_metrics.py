"""Metrics, read with Prometheus' own parser."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.leases import lease
from flows.core.settings import Settings
from flows.images.ledger import Ledger
from flows.metrics import runs, serving
from flows.metrics.exposition import BUCKETS, buckets, registry
from flows.metrics.facts import Facts, SessionFact, downtimes, moves
from flows.metrics.runs import FlowRun, Runs
from flows.migrations.journal import Journal
from flows.migrations.move import Entry, Phase, downtime
from flows.migrations.move_steps import State
from flows.migrations.planning.plan import moved
from flows.migrations.planning.rollout import RolloutStatus
from flows.migrations.planning.rollout_state import RolloutState
from flows.services.embedded import all_services
from flows.sessions.homes.pool import Room
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.waiting import PATIENTLY, free_port
from tests.support.waiting import serving as serving_at

BEGUN = datetime(2026, 11, 21, 9, tzinfo=UTC)
LAB = ("jupyter-minimal-deb12-py311", "2026a")
RAN_BEFORE, NEW = SessionFact(*LAB, "sha256:old", "running", should_run=True, behind=True, overdue=True), "sha256:new"
FACTS = Facts(
    sessions=(
        RAN_BEFORE,
        SessionFact(*LAB, NEW, "running", should_run=True, behind=False),
        SessionFact(*LAB, NEW, "missing", should_run=True, behind=False),
        SessionFact("r-minimal-deb12-py311", "2026a", "sha256:r", "stopped", should_run=False, behind=False),
    ),
    rollouts=(
        RolloutState(NEW, *LAB, BEGUN, "", RolloutStatus.running),
        RolloutState("sha256:old", *LAB, BEGUN, "", RolloutStatus.superseded),
    ),
    moves={("cleaned", ""): 3, ("rolled back", "verify"): 1},
    interrupted=2,
    pool=Room(50, 4),
    downtimes=(0.4, 0.5, 3.0, 100.0),
    stages={"built": 4, "grafted": 20, "reused": 100},
    services={"registry": True, "worker": False},
    runs=Runs(
        {"nightly": FlowRun(state_type="COMPLETED", end_time=BEGUN, total_run_time=12.5)},
        {("refit-deb12", "waiting"): 2},
    ),
)
Samples = dict[tuple[str, tuple[str, ...]], float]


def read(text: str) -> Samples:
    """Name and values of the labels, in the labels' order by name → value."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(facts: Facts) -> Samples:
    return read(generate_latest(registry(lambda: facts)).decode())


def test_all_that_is_counted_can_be_read() -> None:
    answer = told(FACTS)
    lab, other = LAB, ("r-minimal-deb12-py311", "2026a")
    assert answer["refit_sessions", (NEW, *lab, "running")] == 1
    assert answer["refit_sessions", (NEW, *lab, "missing")] == 1
    assert answer["refit_sessions_down", lab] == 1
    assert (answer["refit_sessions_behind", lab], answer["refit_sessions_behind", other]) == (1, 0)
    assert (answer["refit_sessions_overdue", lab], answer["refit_sessions_overdue", other]) == (1, 0)
    assert answer["refit_rollout_begun_timestamp_seconds", (NEW, *lab, "running")] == BEGUN.timestamp()
    assert answer["refit_rollout_sessions", (NEW, "true", *lab)] == 2
    assert answer["refit_rollout_sessions", (NEW, "false", *lab)] == 1
    assert not any(name == "refit_rollout_sessions" and "sha256:old" in labels for name, labels in answer)
    assert answer["refit_moves", ("rolled back", "verify")] == 1
    assert (answer["refit_move_downtime_seconds_count", ()], answer["refit_move_downtime_seconds_sum", ()]) == (
        4,
        103.9,
    )
    assert answer["refit_move_downtime_seconds_bucket", ("0.5",)] == 2
    assert answer["refit_moves_interrupted", ()] == 2
    assert (answer["refit_pool_size_bytes", ()], answer["refit_pool_free_bytes", ()]) == (50, 4)
    assert answer["refit_stages_total", ("grafted",)] == 20
    assert (answer["refit_service_up", ("registry",)], answer["refit_service_up", ("worker",)]) == (1, 0)
    assert answer["refit_queue_runs", ("refit-deb12", "waiting")] == 2
    assert answer["refit_flow_last_success", ("nightly",)] == 1
    assert answer["refit_flow_last_duration_seconds", ("nightly",)] == 12.5


def test_a_machine_on_which_nothing_has_happened_can_be_read_as_well() -> None:
    answer = told(Facts())
    assert (answer["refit_move_downtime_seconds_count", ()], answer["refit_moves_interrupted", ()]) == (0, 0)
    assert not any(name.startswith("refit_pool") for name, _ in answer)


def test_nobody_is_called_up_to_date_while_the_registry_is_silent() -> None:
    unknown = SessionFact(*LAB, "sha256:old", "running", should_run=True)
    assert not any(name == "refit_sessions_behind" for name, _ in told(Facts(sessions=(unknown,))))


def test_a_bucket_holds_what_took_as_long_as_it_says() -> None:
    assert [number for _, number in buckets([BUCKETS[0], BUCKETS[-1], 1e6])] == [1] * (len(BUCKETS) - 1) + [2, 3]


STOPPED = [("stop", Phase.intent), ("stop", Phase.done), ("start", Phase.done)]
MOVED = [*STOPPED, ("answer", Phase.done)]
ROLLED_BACK = [*MOVED, ("verify", Phase.failed), ("revive", Phase.failed), ("revive", Phase.done)]


def test_moves_and_downtimes_are_those_of_the_journal(settings: Settings) -> None:
    journal = Journal(open_database(settings.database))
    write(journal, "ada", MOVED, State.cleaned)
    write(journal, "bob", ROLLED_BACK, State.rolled_back)
    write(journal, "cleo", [("look", Phase.deferred)], State.deferred)
    write(journal, "dan", STOPPED, State.held)
    assert moves(journal.database) == {
        ("cleaned", ""): 1,
        ("rolled back", "verify"): 1,
        ("deferred", "look"): 1,
        ("held", ""): 1,
    }
    expected = [downtime(journal.entries(move)) for move in journal.history()]
    assert sorted(downtimes(journal.database)) == sorted(one for one in expected if one is not None)
    assert len(downtimes(journal.database)) == 2


def write(journal: Journal, name: str, steps: Iterable[tuple[str, Phase]], final: State) -> None:
    before = Session(name, *LAB, "sha256:old", 200_000, HomeRef("/home"), TokenRef("/token"), Access())
    with lease(journal.database, f"session {name}") as held:
        move = journal.begin(held, before, moved(before, NEW, None), "")
        for step, phase in steps:
            journal.write(held, move, Entry(step, phase))
        journal.end(held, move, final, "")


def test_stages_are_counted_over_all_runs(settings: Settings) -> None:
    ledger = Ledger(open_database(settings.database))
    ledger.count(["built", "reused", "reused"])
    ledger.count(["grafted", "reused"])
    assert ledger.counts() == {"built": 1, "grafted": 1, "reused": 3}


@pytest.mark.slow
def test_they_are_served_on_the_port_of_the_settings_and_written_whole(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "look", lambda _: FACTS)
    port, file = free_port(), tmp_path / "refit.prom"
    with serving.served(settings, port):
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", **PATIENTLY)
    serving.write(settings, file)
    assert read(answer.text) == read(file.read_text()) == told(FACTS)
    assert answer.headers["content-type"].startswith("text/plain; version=")


class Prefect(BaseHTTPRequestHandler):
    """Answers as a server with two runs: one of a night that is over, one that waits in a queue."""

    def do_GET(self) -> None:
        self._answer(200, b'{"token": "word"}' if self.path.startswith("/api/csrf-token?client=") else b"{}")

    def do_POST(self) -> None:
        if self.headers["Prefect-Csrf-Token"] != "word" or not self.headers["Prefect-Csrf-Client"]:
            self._answer(403, b"{}")
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        over = {"state_type": "FAILED", "end_time": BEGUN.isoformat(), "total_run_time": 3.0}
        waits = {"state_type": "SCHEDULED", "work_pool_name": "refit-deb12", "end_time": None, "total_run_time": 0.0}
        nights = asked.get("flows", {}).get("name", {}).get("any_") == ["nightly"]
        answer = json.dumps(([over] if nights else []) if "flows" in asked else [waits]).encode()
        self._answer(200, answer)

    def _answer(self, code: int, answer: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def test_the_prefect_server_is_asked_for_runs(settings: Settings) -> None:
    with serving_at(Prefect) as port:
        changed_settings = runs.look(settings.model_copy(update={"prefect_server": f"http://127.0.0.1:{port}"}))
    assert changed_settings.open == {("refit-deb12", "waiting"): 1}
    assert {flow: run.state_type for flow, run in changed_settings.last.items()} == {"nightly": "FAILED"}


def test_a_prefect_server_that_is_away_is_no_error(settings: Settings) -> None:
    assert runs.look(settings.model_copy(update={"prefect_port": free_port()})) == Runs()


def test_the_service_is_there_only_where_a_port_is_chosen(settings: Settings) -> None:
    assert "metrics" not in {service.name for service in all_services(settings)}
    chosen = settings.model_copy(update={"metrics_port": free_port()})
    assert "metrics" in {service.name for service in all_services(chosen)}


@pytest.mark.slow
def test_with_a_token_only_those_who_have_it_are_answered(settings: Settings) -> None:
    port = free_port()
    chosen = settings.model_copy(update={"metrics_token": SecretStr("word")})
    with serving.served(chosen, port), httpx.Client(base_url=f"http://127.0.0.1:{port}", **PATIENTLY) as client:
        for wrong in ({}, {"Authorization": "Bearer wörd".encode("latin-1")}, {"Authorization": "word"}):
            answer = client.get("/metrics", headers=wrong)  # type: ignore[arg-type]
            assert answer.status_code == 401 and "refit_" not in answer.text
        assert client.get("/favicon.ico").status_code == 200
        assert "refit_sessions" in client.get("/metrics", headers={"Authorization": "Bearer word"}).text
