"""Moves of sessions with system packages of their own: the policy decides where the new image can't have one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.policy import MissingPackages
from flows.migrations.move import Consent, Entry, Phase
from flows.migrations.move_steps import StepName
from flows.migrations.rehearsals.rehearsal import installed
from flows.migrations.results import Deferred
from flows.migrations.steps import environments, packages
from flows.migrations.steps.move_context import MoveContext
from flows.sessions.packages.model import NoIndex, Outcome

GONE = {"htop": "Unable to locate package htop"}


class Replaying:
    """The packages of one session, whose installation ends in some way."""

    def __init__(self, ends: Outcome | RefitError) -> None:
        self._ends, self.store = ends, SimpleNamespace(names=lambda _: ("htop", "tree"))

    def replay(self, _: object) -> Outcome:
        if isinstance(self._ends, RefitError):
            raise self._ends
        return self._ends


def context(settings: Settings, ends: Outcome | RefitError, missing: MissingPackages) -> MoveContext:
    migration = settings.migration.model_copy(update={"missing_packages": missing})
    sessions = SimpleNamespace(packages=Replaying(ends))
    given = SimpleNamespace(settings=settings.model_copy(update={"migration": migration}), sessions=sessions)
    return cast(MoveContext, given)


def move(consent: Consent | None = None) -> Any:
    ada = SimpleNamespace(name="ada", profile="jupyter-minimal-deb12-py311")
    return SimpleNamespace(before=ada, after=ada, consent=consent, back_to="")


@pytest.mark.parametrize(
    ("consent", "missing", "moves"),
    [
        (None, MissingPackages.stay, False),
        (Consent.agreed, MissingPackages.stay, False),
        (Consent.starts, MissingPackages.stay, False),
        (Consent.forced, MissingPackages.stay, True),
        (None, MissingPackages.go_on, True),
    ],
)
def test_a_package_that_is_gone_keeps_a_session_until_its_deadline(
    settings: Settings, consent: Consent | None, missing: MissingPackages, moves: bool
) -> None:
    given = context(settings, Outcome({"tree": "2.1"}, GONE), missing)
    if not moves:
        with pytest.raises(Deferred, match="refit session uninstall ada htop"):
            packages.replay(given, move(consent))
        return
    done = packages.replay(given, move(consent))
    assert done.note == "installed again: tree; not installed again: htop (Unable to locate package htop)"
    entries = (Entry(StepName.create, Phase.done, done.note, data=done.data),)
    assert (
        packages.missing_packages(entries)
        == "System packages that this image can't have: htop (Unable to locate package htop)."
    )
    assert packages.missing_packages(()) == packages.missing_packages((Entry(StepName.create, Phase.done),)) == ""


@pytest.mark.parametrize("missing", [*MissingPackages])
@pytest.mark.parametrize("consent", [None, *Consent])
def test_an_index_that_is_away_puts_every_move_off(
    settings: Settings, consent: Consent | None, missing: MissingPackages
) -> None:
    with pytest.raises(Deferred, match="can't be installed just now"):
        packages.replay(context(settings, NoIndex("The index doesn't answer."), missing), move(consent))


def test_packages_that_cant_be_had_together_are_all_missing(settings: Settings) -> None:
    broken = RefitError("They can't be installed.", why="E: Unmet\n dependencies")
    with pytest.raises(Deferred, match=r"htop .*tree"):
        packages.replay(context(settings, broken, MissingPackages.stay), move())
    outcome = installed(lambda _: (_ for _ in ()).throw(broken), ["htop"])
    assert outcome.missing.keys() == {"htop"} and outcome.missing["htop"].isprintable()
    assert installed(lambda _: Outcome({"never": "asked"}), ()) == Outcome()


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("jupyter-minimal-deb12-py311", "jupyter-minimal-deb13-py313", True),
        ("jupyter-minimal-deb12-py311", "code-other-deb13-py311", False),
        ("jupyter-minimal-deb12-py311", "by-hand", False),
        ("", "", False),
    ],
)
def test_environments_are_looked_at_only_after_a_move_onto_another_python(old: str, new: str, changes: bool) -> None:
    assert environments.changes_python(old, new) is changes
