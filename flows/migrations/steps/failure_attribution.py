"""Whom a step that failed blames: the new image, or only what was wrong with one session before its stop. Pure.

A full disk, an IDE that is ill already, credentials that have expired: nobody was stopped, and none of it is a reason
to keep the image from all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from flows.images.registry_errors import NoImage
from flows.migrations.move import Move
from flows.migrations.move_steps import STEPS, Code, StepName
from flows.migrations.results import Unproven
from flows.sessions.model import DoesNotBegin

# How often a session is put off so on its way to one image; then it counts as one that has failed on it.
PUT_OFF = 3
_BEFORE_THE_STOP = frozenset(step.name for step in takewhile(lambda step: step.name != StepName.stop, STEPS))
# In these the new image runs by itself: a failure is most likely its fault.
_OF_THE_IMAGE = frozenset({StepName.warm})


def puts_off(step: str, error: BaseException, move: Move, earlier: Iterable[Move]) -> bool:
    """Whether a session is to be tried again later, because what went wrong says nothing of its new image.

    Args:
        step: the step that failed.
        error: with what.
        move: the move.
        earlier: all moves of the session.
    """
    if step not in _BEFORE_THE_STOP - _OF_THE_IMAGE or isinstance(error, NoImage | Unproven | DoesNotBegin):
        return False
    before = [other for other in earlier if other.after.image == move.after.image and other.code is Code.put_off]
    return len(before) < PUT_OFF
