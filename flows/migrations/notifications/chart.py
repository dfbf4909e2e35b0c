"""A rollout over time, for people: how many sessions were moved, and how many were not. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import datetime

from flows.core.formatting import in_markdown, short
from flows.migrations.move_steps import State
from flows.migrations.notifications.fleet import Fleet, RolloutLine
from flows.sessions.events import Event, Kind

_WIDTH, _HEIGHT, _MARGIN = 640, 160, 24
# End of a move → its name and colour.
_LINES = (
    ((State.cleaned,), "moved", "#2a7"),
    ((State.rolled_back, State.held), "failed", "#c33"),
    ((State.deferred,), "deferred", "#999"),
)


def markdown(fleet: Fleet, events: Sequence[Event], now: datetime) -> str:
    """All rollouts, each with its picture and its waves."""
    return (
        "\n".join(part for rollout in fleet.rollouts for part in _rollout(rollout, events, now))
        or "No rollout has begun."
    )


def _rollout(rollout: RolloutLine, events: Iterable[Event], now: datetime) -> Iterable[str]:
    mine = [event for event in events if event.image == rollout.image and event.at >= rollout.begun]
    drawn = base64.b64encode(svg(mine, rollout.begun, now).encode()).decode()
    rows = [(w.title, w.moved, w.failed, w.left, in_markdown(w.health.text if w.health else "")) for w in rollout.waves]
    return (
        f"## {rollout.profile} {rollout.release}: {short(rollout.image)}, {rollout.way}",
        "",
        f"![Moves since {rollout.begun:%Y-%m-%d %H:%M} UTC](data:image/svg+xml;base64,{drawn})",
        "",
        "| wave | moved | failed | left | what it says |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
        "",
    )


def svg(events: Iterable[Event], begun: datetime, now: datetime) -> str:
    """How many moves had ended so at each moment, from `begun` to `now`, as an SVG document."""
    ended = [(event.at, event.data["state"]) for event in events if event.kind is Kind.move_ended]
    most = max((sum(state in states for _, state in ended) for states, *_ in _LINES), default=0)
    drawn = []
    for number, (states, name, colour) in enumerate(_LINES):
        moments = [at for at, state in ended if state in states]
        path = _path(moments, begun, now, max(most, 1))
        x = _MARGIN + 140 * number
        drawn += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{x}" y="14" fill="{colour}">{name}: {len(moments)}</text>',
        ]
    axis = _HEIGHT - _MARGIN
    times = (
        f'<text x="{_MARGIN}" y="{_HEIGHT - 6}">{begun:%Y-%m-%d %H:%M}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}" text-anchor="end">{now:%Y-%m-%d %H:%M} UTC</text>'
    )
    line = f'<line x1="{_MARGIN}" y1="{axis}" x2="{_WIDTH - _MARGIN}" y2="{axis}" stroke="#ccc"/>'
    # A grey that can be read on white and on the black of Prefect's UI.
    size = f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="#888"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{line}{times}{"".join(drawn)}</svg>'


def _path(moments: Sequence[datetime], begun: datetime, now: datetime, most: int) -> str:
    """A staircase: one step up at each moment."""
    seconds = max((now - begun).total_seconds(), 1.0)
    wide, high = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def place(at: datetime, count: int) -> str:
        x = _MARGIN + wide * (at - begun).total_seconds() / seconds
        return f"{x:.1f},{_HEIGHT - _MARGIN - high * count / most:.1f}"

    steps = [place(at, count + up) for count, at in enumerate(moments) for up in (0, 1)]
    return " ".join([place(begun, 0), *steps, place(now, len(moments))])
