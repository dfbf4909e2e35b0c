"""The doctor's findings on sessions: their homes, moves, records and images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.formatting import gigabytes
from flows.core.settings import Settings
from flows.host import tools
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.orphaned_moves import interrupted
from flows.publishing import vouching
from flows.publishing.signatures import Publications, Refusal
from flows.services.doctor_findings import Finding
from flows.sessions import engines
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import Pool, Room
from flows.sessions.recovery import homes_without_record, without_record
from flows.sessions.store import Store


def pool(settings: Settings) -> Iterable[Finding]:
    """Whether the pool of homes, if there is one, can be had and has room."""
    try:
        homes = Pool(settings)
        if homes.ready():
            yield judge_pool(homes.room())
    except RefitError as error:
        yield Finding("pool", False, f"{error.what} {error.why}".strip(), error.hint)


def bounds(settings: Settings) -> Iterable[Finding]:
    """Whether one session can fill the disk; nothing is said on a machine that has no sessions' homes."""
    try:
        homes = LocalHomes(settings)
        owned = homes.owners()
    except RefitError:  # that of the pool says why
        return
    if owned:
        free = [name for name in owned if homes.path(name) not in homes.pool]
        yield judge_bounds(free, not homes.pool.exists or homes.pool.bounds_homes)


def judge_bounds(in_folders: Sequence[str], pool_has_limits: bool) -> Finding:
    """Whether all homes have a limit: those in folders have none, those in the pool where the kernel can."""
    notes = [f"homes in folders have no limit of room: {', '.join(in_folders)}"] if in_folders else []
    notes += [] if pool_has_limits else ["homes in the pool have no limit of room"]
    notes += ["what a session writes outside its home has none"] if notes else []
    hints = ["`refit home pool create` and `refit home pool add` give them one"] if in_folders else []
    hints += [] if pool_has_limits else ["a kernel from 6.7 on has limits for the pool"]
    seen = "; ".join(notes) or "all homes have a limit of room; files that sessions write outside them have none"
    return Finding("room of sessions", not notes, seen, "; ".join(hints) + ".")


def judge_pool(room: Room) -> Finding:
    """Whether so much room is enough for homes that grow, and for their snapshots."""
    seen = f"{room.free / 1e9:.1f} of {gigabytes(room.size)} are free"
    hint = "`refit home pool grow --size …`, or remove homes that were kept and nobody needs (`refit home list`)."
    return Finding("pool", not room.short, seen, hint)


def moves(settings: Settings) -> Iterable[Finding]:
    """Whether a move was interrupted, or is held; nothing is said on a machine on which nothing was ever moved."""
    if not _has_database(settings):
        return
    try:
        journal = Journal(open_database(settings.database))
        sessions = [move.before.name for move in interrupted(journal)]
        held = [name for name, move in journal.latest().items() if move.state is State.held]
    except RefitError as error:
        yield Finding("database", False, f"{error.what} {error.why}".strip(), error.hint)
        return
    yield judge_moves(sessions, held)


def judge_moves(interrupted: Sequence[str], held: Sequence[str]) -> Finding:
    """The finding on moves of these sessions."""
    if not interrupted and not held:
        return Finding("moves", True, "none was interrupted, none is held")
    notes = [f"of {', '.join(interrupted)}: interrupted"] if interrupted else []
    notes += [f"of {', '.join(held)}: held, nothing more happens by itself"] if held else []
    hints = ["`refit migrate recover` ends what was interrupted"] if interrupted else []
    hints += [f"`refit migrate history {held[0]}` says what to do"] if held else []
    return Finding("moves", False, "; ".join(notes), "; ".join(hints) + ".")


def records(settings: Settings) -> Iterable[Finding]:
    """Whether homes, and sessions that have containers, are on record; nothing where there are no containers."""
    if not settings.in_cluster and not tools.containers(settings).exists():
        return
    try:
        store = Store(open_database(settings.database)) if _has_database(settings) else None
        names = {session.name for session in store.sessions()} if store else set[str]()
        lost = [family[0].session for family in without_record(engines.engine(settings).containers(), names)]
        homes = homes_without_record(engines.homes(settings).owners(), {*(store.homes() if store else ()), *lost})
    except RefitError as error:
        yield Finding("records", False, f"{error.what} {error.why}".strip(), error.hint)
        return
    yield judge_records(lost, [*homes])


def judge_records(lost: Sequence[str], homes: Sequence[str]) -> Finding:
    """The finding on sessions and homes that are on no record."""
    if not lost and not homes:
        return Finding("records", True, "all homes, and all sessions that have containers, are on record")
    notes = [f"of {', '.join(lost)}: containers, and no record"] if lost else []
    notes += [f"of {', '.join(homes)}: homes, and no record"] if homes else []
    seen = f"{'; '.join(notes)}, as after the loss of the database"
    return Finding("records", False, seen, "`refit session recover` records them again.")


def aliases(settings: Settings) -> Iterable[Finding]:
    """Whether aliases point at what was published; nothing while the registry doesn't answer."""
    if not _has_database(settings):
        return
    with suppress(RegistryError):  # `refit status` tells of that
        registry = Registry(settings)
        publications = Publications(settings, registry=registry)
        targets = vouching.aliases(registry)
        verdicts = publications.current(targets.values())
        pointed = {alias: verdicts.get(key) for alias, key in targets.items()}
        yield judge_aliases(
            {alias: str(refusal.doubt) for alias, refusal in pointed.items() if isinstance(refusal, Refusal)}
        )


def judge_aliases(wrong: Mapping[str, str]) -> Finding:
    """The finding on aliases that point at images that don't count: alias → code of the reason."""
    if not wrong:
        return Finding("aliases", True, "all point at what was published")
    aliases = "; ".join(f"{alias} ({doubt})" for alias, doubt in sorted(wrong.items()))
    hint = "`refit build` publishes these images again; `refit images sign` shows them, and signs those that you know."
    return Finding("aliases", False, f"point at what nobody published: {aliases}", hint)


def _has_database(settings: Settings) -> bool:
    return bool(settings.database_url) or (settings.home / "refit.db").exists()
