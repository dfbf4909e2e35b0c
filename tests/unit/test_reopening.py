"""What a stop has ended, in words; and what a hook means."""

from __future__ import annotations

import pytest

from flows.migrations.move import Entry, Phase
from flows.migrations.parting import ended_by
from flows.sessions.ide.reopening import Document, Opened, told
from flows.sessions.watching.hook import NOT_NOW, meaning

NOTEBOOK = Document("work/a.ipynb", "a.ipynb", "notebook", "python3")
ENDED = Opened((NOTEBOOK,), ("1",), ("sleep 600, pid 17",))


def test_what_ended_and_what_is_open_again_is_told() -> None:
    assert told(ENDED, Opened((NOTEBOOK,), ("1",))).splitlines() == [
        "What ended: the kernel python3 of work/a.ipynb; the terminal 1; sleep 600, pid 17.",
        "Opened again, and empty: the kernel python3 of work/a.ipynb; the terminal 1.",
    ]
    assert told(Opened(), Opened()) == ""


def test_what_is_open_at_the_last_look_before_the_stop_is_what_ended() -> None:
    earlier, last = (Entry("look", Phase.done, f"nobody works in it\n{one.to_json()}") for one in (Opened(), ENDED))
    assert ended_by([earlier, last, Entry("stop", Phase.done)]) == ENDED
    for note in ("nobody works in it", "its owner agreed\n{}", '{"documents": 1}'):
        assert ended_by([Entry("look", Phase.done, note)]) == Opened()
    assert ended_by([]) == Opened()


@pytest.mark.parametrize(
    ("code", "said", "means"),
    [
        (NOT_NOW, "", "says not now"),
        (NOT_NOW, "saving\ntraining ends at 18:00\n", "says not now: training ends at 18:00"),
        (NOT_NOW, "\x1b[2Jno", "says not now: [2Jno"),
        (1, "", "ended with exit code 1, which is no yes"),
    ],
)
def test_only_an_exit_code_of_0_is_a_yes(code: int, said: str, means: str) -> None:
    assert meaning(code, said) == f"its hook ~/.config/refit/before-move {means}"
