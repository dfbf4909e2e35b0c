"""The codes by which the database and scripts know things stay as they are, and each has a text for people."""

from enum import StrEnum

import pytest

from flows.migrations.move import Consent, Phase
from flows.migrations.move_steps import Code, State
from flows.migrations.planning.rollout import Health, Lack, Reason, RolloutStatus
from flows.migrations.steps.unattended import TEXTS
from flows.sessions.events import Kind

CODES: dict[type[StrEnum], str] = {
    Code: "unused home-kept unwatched unwatched-ended put-off",
    Consent: "agreed forced starts",
    Health: "open passed failed inconclusive unapproved",
    Lack: "no-scan",
    Phase: "intent done failed skipped deferred interrupted reopened",
    Reason: "current stopped no-image refused moving unfinished held failed not-offered other-maker "
    "unknown-maker busy unknown ask untold next-start blocked "
    "gpu room paused aborted superseded gate never state pinned snoozed deferred pull quiet window frozen late",
    RolloutStatus: "running paused aborted superseded",
}
WORDS: dict[type[StrEnum], list[str]] = {
    Kind: [
        *("move begun", "move ended", "notice delivered", "notice not delivered", "notice seen", "notice withdrawn"),
        *("owner reminded", "machine goes down"),
        *("rollout begun", "rollout superseded", "rollout paused", "rollout resumed"),
        *("rollout aborted", "rollout approved", "wave judged", "wish changed"),
        *("session shared", "share ended", "guest came in"),
        *("snapshot taken", "snapshot removed", "files restored"),
        *("packages installed", "packages forgotten"),
    ],
    State: [
        *("planned", "preflight", "staged", "locked", "stopped", "snapshotted", "started", "verified", "committed"),
        *("cleaned", "skipped", "deferred", "rolling back", "rolled back", "held"),
    ],
}


@pytest.mark.parametrize("kind", [*CODES, *WORDS], ids=lambda kind: kind.__name__)
def test_codes_stay_as_they_are(kind: type[StrEnum]) -> None:
    assert [member.value for member in kind] == (CODES[kind].split() if kind in CODES else WORDS[kind])


def test_each_code_that_people_see_has_a_text_of_its_own() -> None:
    for kind in (Consent, Health, Lack, Reason):
        texts = [member.text for member in kind]
        assert all(texts) and len(set(texts)) == len(texts)
    assert set(TEXTS) == {Code.unwatched, Code.unwatched_ended}
