"""Each verb of the API is one of the shell's as well, on people's own machines or on the host."""

from __future__ import annotations

from pathlib import Path

from flows.web.my_sessions.verbs.table import VERBS
from tests.support.machine import ROOT

COMMANDS = set(Path(ROOT, "tests/unit/cli/commands.txt").read_text().splitlines())
# Verb → command, where they aren't called the same.
CALLED = {
    "roll-back": "mine rollback",
    "bring-back": "mine rollback",  # with --only
    "add-keys": "mine add-key",
    # For those who administer the Hub; in the shell, the operator.
    "overview": "migrate plan",
    "steer": "migrate pause",
}


def test_each_verb_of_the_api_is_one_of_the_shell() -> None:
    missing = {verb.name for verb in VERBS if CALLED.get(verb.name, f"mine {verb.name}") not in COMMANDS}
    assert not missing
