"""A new image that doesn't prove itself: how long until the old one is back?"""

from __future__ import annotations

from datetime import datetime

from bench.downtime import slow
from bench.lab import Lab, client, lab
from bench.results import Row
from flows.core.database import open_database
from flows.core.settings.policy import RolloutPolicy
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import State
from tests.support.variants import WAITS

ROUNDS, LIMIT = 15, 5.0
# Seconds until an IDE that doesn't answer has failed, which is when it begins to count; the old one may need more.
READY_LIMIT, PATIENCE = 6.0, 4.0
NAME = "ada"
# All get as far as their start: one that never waits for its home has failed before the old one is stopped.
BAD = {
    "never answers": ["sh", "-c", f"{WAITS}; exec sleep 600"],
    "answers wrongly": ["sh", "-c", f"{WAITS}; cd /tmp && exec python3 -m http.server 8888"],
    "ends": ["sh", "-c", f"{WAITS}; exit 3"],
}


def run() -> list[Row]:
    """JupyterLab gets an image whose IDE never answers, answers wrongly, or ends: until its old one answers again."""
    # A rehearsal would find all of them before the session is touched.
    with lab(migration=RolloutPolicy(rehearse=False), ready_timeout_seconds=READY_LIMIT) as machine:
        machine.create(NAME, PATIENCE)
        bad = [machine.image(name, command) for name, command in BAD.items()]
        seconds = [_back(machine, bad[number % len(bad)]) for number in range(ROUNDS)]
    what = f"rollback after a failed health gate, {ROUNDS} rollbacks: until JupyterLab on the old image answers, p95"
    return [Row(what, "s", f"p95 ≤ {LIMIT:g} s", slow(seconds), slow(seconds) <= LIMIT)]


def _back(machine: Lab, image: str) -> float:
    """Seconds from when the failure was seen until the old image answers again."""
    session = machine.sessions.store.session(NAME)
    with client(machine.sessions.url(session), machine.sessions.token(session)) as somebody:
        result = machine.move(NAME, image)
        if result.state is not State.rolled_back:
            raise SystemExit(f"{NAME} was not rolled back: {result.state} {result.reason}")
        return somebody.back() - _failed(machine).timestamp()


def _failed(machine: Lab) -> datetime:
    journal = Journal(open_database(machine.settings.database))
    entries = journal.entries(journal.latest()[NAME])
    return next(entry.at for entry in entries if entry.phase is Phase.failed and entry.at)
