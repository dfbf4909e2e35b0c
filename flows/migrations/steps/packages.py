"""System packages that an operator has installed in a session: a move installs them in its new container, too."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flows.core.formatting import some
from flows.core.settings.policy import MissingPackages
from flows.migrations.move import Consent, Entry, Move, Phase
from flows.migrations.move_steps import StepName
from flows.migrations.rehearsals.rehearsal import installed
from flows.migrations.results import NOTHING, Deferred, Outcome
from flows.migrations.steps.move_context import MoveContext
from flows.sessions.packages.model import NoIndex


def replay(context: MoveContext, move: Move) -> Outcome:
    """Install in the new container what is on record; it doesn't run yet, so nobody waits.

    Raises:
        Deferred: no index answers, or the image can't have all of them and the policy is to stay then.
    """
    names = context.sessions.packages.store.names(move.before.name)
    if not names:
        return NOTHING
    try:
        done = installed(lambda _: context.sessions.packages.replay(move.after), names)
    except NoIndex as error:
        raise no_index(error) from error
    check(context, move, done.missing)
    return Outcome(str(done), data=json.dumps({"missing": dict(done.missing)}) if done.missing else "")


def check(context: MoveContext, move: Move, missing: Mapping[str, str]) -> None:
    """Let a session stay that would lose packages, if that is the policy; a deadline that has come goes before it.

    Raises:
        Deferred: it is.
    """
    stays = context.settings.migration.missing_packages is MissingPackages.stay and move.consent is not Consent.forced
    if missing and stays:
        packages = some([f"{name} ({why})" for name, why in missing.items()])
        command = f"refit session uninstall {move.before.name} {' '.join(missing)}"
        raise Deferred(f"its new image can't have system packages that it has: {packages}; `{command}` lets it move")


def no_index(error: NoIndex) -> Deferred:
    """A mirror that is away says nothing of the image: it is tried again."""
    return Deferred(f"its system packages can't be installed just now: {error.what}")


def missing_packages(entries: tuple[Entry, ...]) -> str:
    """The packages that didn't come along, for the session's person; empty: all did. Pure."""
    data = [entry.data for entry in entries if (entry.step, entry.phase) == (StepName.create, Phase.done)]
    missing = json.loads(data[-1])["missing"] if data and data[-1] else {}
    gone = [f"{name} ({why})" for name, why in missing.items()]
    return f"System packages that this image can't have: {some(gone)}." if gone else ""
