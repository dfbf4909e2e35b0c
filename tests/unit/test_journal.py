"""What the journal says of a move whose process was killed."""

from __future__ import annotations

from pathlib import Path

from flows.catalog.model import Access
from flows.database import lease, open_database
from flows.migrations.history import History, Kind
from flows.migrations.journal import Journal
from flows.migrations.move import STEPS, Entry, Phase, State
from flows.migrations.planning.plan import moved
from flows.sessions.model import Session
from flows.settings import Settings

ADA = Session("ada", "p", "2026a", "sha256:old", 200_000, None, Path("/home"), Path("/token"), Access())


def test_a_move_is_unfinished_until_the_history_tells_of_its_end(settings: Settings) -> None:
    journal = Journal(open_database(settings.database))
    with lease(journal.database, "session ada") as held:
        move = journal.begin(held, ADA, moved(ADA, "sha256:new", None), "")
        for step in STEPS:
            journal.write(held, move, Entry(step.name, Phase.intent))
            journal.write(held, move, Entry(step.name, Phase.done))
        assert [found.id for found in journal.unfinished()] == [move.id]
        assert journal.end(held, move, State.cleaned, "").ended
    assert not journal.unfinished()
    told = [event.kind for event in History(journal.database).events("ada")]
    assert told == [Kind.move_begun, Kind.move_ended]
