"""The journal of a move whose process was killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.leases import LeaseLost, lease
from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.move import Entry, Phase, state
from flows.migrations.move_steps import OF_EVERY_MOVE, State
from flows.migrations.planning.plan import moved
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.model import HomeRef, Session, TokenRef

ADA = Session("ada", "p", "2026a", "sha256:old", 200_000, HomeRef("/home"), TokenRef("/token"), Access())


def test_a_move_is_unfinished_until_the_history_tells_of_its_end(settings: Settings) -> None:
    journal = Journal(open_database(settings.database))
    with lease(journal.database, "session ada") as held:
        move = journal.begin(held, ADA, moved(ADA, "sha256:new", None), "")
        for step in OF_EVERY_MOVE:
            journal.write(held, move, Entry(step.name, Phase.intent))
            journal.write(held, move, Entry(step.name, Phase.done))
        assert [one.id for one in journal.unfinished()] == [move.id]
        assert journal.end(held, move, State.cleaned, "").ended
    assert not journal.unfinished()
    told = [event.kind for event in History(journal.database).events("ada")]
    assert told == [Kind.move_begun, Kind.move_ended]


def test_an_outcome_is_on_the_disk_before_the_next_intent(settings: Settings) -> None:
    journal, others = Journal(open_database(settings.database)), Journal(open_database(settings.database))
    with lease(journal.database, "session ada") as held:
        move = journal.begin(held, ADA, moved(ADA, "sha256:new", None), "")
        begun, done, then = Entry("check", Phase.intent), Entry("check", Phase.done), Entry("pull", Phase.intent)
        journal.write(held, move, begun)
        assert others.entries(move) == (begun,)
        journal.note(held, move, done)
        assert journal.entries(move) == (begun, done)
        journal.write(held, move, then)
        assert others.entries(move) == journal.entries(move) == (begun, done, then)
        assert [entry.at for entry in others.entries(move)] == [entry.at for entry in journal.entries(move)]
        assert others.move(move.id).state is State.preflight
        journal.note(held, move, Entry("pull", Phase.done))
        journal.end(held, move, State.skipped, "")
        assert others.entries(move)[-1] == Entry("pull", Phase.done)


def test_who_has_lost_the_lease_knows_nothing_any_more(settings: Settings) -> None:
    journal, others = Journal(open_database(settings.database)), Journal(open_database(settings.database))
    with lease(journal.database, "session ada") as held:
        move = journal.begin(held, ADA, moved(ADA, "sha256:new", None), "")
        journal.note(held, move, Entry("check", Phase.done))
        with pytest.raises(LeaseLost):
            journal.write(replace(held, fence=held.fence - 1), move, Entry("pull", Phase.intent))
        assert journal.entries(move) == ()
        others.write(held, move, Entry("check", Phase.intent))
        assert journal.take_over(move.id) == others.move(move.id)
        journal.note(held, move, Entry("check", Phase.done))  # of a move that it has taken over: written at once
        assert others.entries(move) == journal.entries(move)
        assert others.entries(move)[-1].phase is Phase.done


@pytest.mark.parametrize("stuck", ["clean", "restore"])
def test_everybody_sees_the_state_that_the_lines_lead_to_also_after_a_move_was_held(
    stuck: str, settings: Settings
) -> None:
    journal, others = Journal(open_database(settings.database)), Journal(open_database(settings.database))
    seen: list[State] = []

    def look() -> None:
        seen.append(others.move(move.id).state)
        assert seen[-1] is state(others.entries(move))

    with lease(journal.database, "session ada") as held:
        move = journal.begin(held, ADA, moved(ADA, "sha256:new", None), "")
        for step in OF_EVERY_MOVE[:-1] if stuck == "clean" else OF_EVERY_MOVE[:10]:
            journal.write(held, move, Entry(step.name, Phase.intent))
            look()
            journal.note(held, move, Entry(step.name, Phase.done))
        if stuck == "restore":
            journal.write(held, move, Entry("answer", Phase.failed))
            look()
        journal.write(held, move, Entry(stuck, Phase.failed))
        look()
        journal.end(held, move, State.held, "")
        assert others.move(move.id).state is State.held
        journal.write(held, move, Entry("", Phase.reopened))
        look()
        journal.write(held, move, Entry(stuck, Phase.intent))
        look()
    assert seen[-3:] == [State.committed if stuck == "clean" else State.rolling_back] * 3
