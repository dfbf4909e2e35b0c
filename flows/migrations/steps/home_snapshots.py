"""Snapshots of a home in a move: from the copy before the stop to what of it stays, and the one before a rollback.

The snapshot of a move bears the move's identifier. It is one of the session's own, with a name, only once it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from flows.migrations.move import Entry, Move, Phase, has_code
from flows.migrations.move_steps import Code, StepName
from flows.migrations.results import NOTHING, Outcome
from flows.migrations.steps.move_context import NO_SNAPSHOT, MoveContext
from flows.sessions.homes.volumes import parts
from flows.sessions.snapshots.model import Kind, Snapshot, as_note, name_for
from flows.sessions.snapshots.records import SnapshotRecords


def copy(context: MoveContext, move: Move) -> Outcome:
    """Copy the home into the snapshot of a move while people work in it."""
    if not context.keeps_snapshots:
        return Outcome(NO_SNAPSHOT)
    if not move.relocates:  # it would hold the home on the machine that the session leaves
        context.sessions.homes.prepare(move.before, move.id, [move.back_to] if move.back_to else [])
    context.sessions.homes.copy(move.before, move.id)
    return NOTHING


def finish(context: MoveContext, move: Move) -> Outcome:
    """Bring into the snapshot what has changed since the copy; the session has stopped."""
    if context.keeps_snapshots:
        context.sessions.homes.delta(move.before, move.id)
    return NOTHING


def roll_back(context: MoveContext, move: Move) -> Outcome:
    """The home as it is becomes a snapshot of the session's own, then it goes back to an earlier one."""
    safety = keep(context, move, Kind.safety)
    context.sessions.homes.restore(move.before, move.back_to)
    return Outcome(f"the home as it was until now is the snapshot {safety}")


def settle(context: MoveContext, move: Move) -> Outcome:
    """The home as it was before a move stays after a rollback, and if the settings say so; else it is removed."""
    if not context.keeps_snapshots:
        return NOTHING
    kept = has_code(context.journal.entries(move), Code.home_kept)  # until a person removes it
    if not move.back_to and (kept or not context.settings.migration.keep_hours):
        return forget(context, move)
    context.sessions.homes.release(move.before.name)
    name = keep(context, move, Kind.safety if move.back_to else Kind.move)
    return Outcome(f"the home as it was before is the snapshot {name}")


def keep(context: MoveContext, move: Move, kind: Kind) -> str:
    """Let the snapshot of a move be one of the session's; returns its name."""
    records, before = SnapshotRecords(context.sessions.store.database), move.before
    if existing := next((snapshot for snapshot in records.all(before.name) if snapshot.id == move.id), None):
        return existing.name
    name = name_for(kind, move.created, {snapshot.name for snapshot in records.all(before.name)})
    volumes = tuple(part.volume for part in parts(before) if part.volume)
    made_of = (before.image, before.profile, before.release, volumes)
    kept = Snapshot(move.id, before.name, name, kind, "", move.created, "", *made_of)
    context.sessions.homes.note(before.name, move.id, as_note(kept))
    records.adopt(kept)
    return name


def forget(context: MoveContext, move: Move) -> Outcome:
    """Remove the snapshot of a move and its record, unless the home has to be kept with it."""
    context.sessions.homes.release(move.before.name)
    entries = context.journal.entries(move)
    if has_code(entries, Code.home_kept):
        return Outcome("the snapshot was kept")
    name, homes = move.before.name, context.sessions.homes
    has_both = context.sessions.store.has_home(name) and homes.has_snapshot(name, move.id)
    if has_both and _left_unrestored(entries) and (changed := context.changes(move)):
        return context.keep_home(move, changed)
    homes.forget(name, move.id)
    SnapshotRecords(context.sessions.store.database).forget(move.id)
    return NOTHING


def _left_unrestored(entries: Sequence[Entry]) -> bool:
    """Whether a new container may have touched a home that nobody compares any more: its session was deleted."""
    begun = {entry.step for entry in entries if entry.phase is Phase.intent}
    done = {entry.step for entry in entries if entry.phase is Phase.done}
    undone = {StepName.commit, StepName.restore, StepName.reinstate} & done
    return bool({StepName.start, StepName.revert} & begun) and not undone
