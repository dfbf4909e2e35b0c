"""The metrics in Prometheus' format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from flows.metrics.facts import Facts, SessionFact
from flows.metrics.runs import FlowRun, Runs
from flows.sessions.homes.pool import Room

# Seconds: half a second is what a warm start takes, a minute what is promised to people at most.
BUCKETS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
_IMAGE = ("profile", "release", "image")
_PROFILE = ("profile", "release")
Labels = tuple[str, ...]
"""The values of the labels of one sample."""


class Metrics(Collector):
    """Looks anew each time that somebody asks."""

    def __init__(self, look: Callable[[], Facts]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """All families."""
        return families(self._look())


def registry(look: Callable[[], Facts]) -> CollectorRegistry:
    """The registry that prometheus_client writes and serves."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(Metrics(look))
    return collectors


def families(facts: Facts) -> Iterator[Metric]:
    """All that is counted."""
    yield from _of_sessions(facts.sessions)
    yield from _of_rollouts(facts)
    yield from _of_moves(facts)
    yield from _of_pool(facts.pool)
    stages = CounterMetricFamily("refit_stages", "Stages of all builds.", labels=("how",))
    for how, number in sorted(facts.stages.items()):
        stages.add_metric((how,), number)
    yield stages
    yield from _of_services(facts)
    yield from _of_runs(facts.runs)


def _of_sessions(sessions: Sequence[SessionFact]) -> Iterator[Metric]:
    states = Counter[Labels]((s.profile, s.release, s.image, s.state) for s in sessions)
    yield _gauge("refit_sessions", "Sessions of this machine.", (*_IMAGE, "state"), states)
    down = _each(sessions, lambda session: session.should_run and session.state != "running")
    yield _gauge("refit_sessions_down", "Sessions that ought to run and don't.", _PROFILE, down)
    if all(session.behind is not None for session in sessions):
        behind = _each(sessions, lambda session: bool(session.behind))
        yield _gauge("refit_sessions_behind", "Sessions for which there is a newer image.", _PROFILE, behind)
        overdue = _each(sessions, lambda session: session.overdue)
        yield _gauge("refit_sessions_overdue", "Sessions whose deadline has passed.", _PROFILE, overdue)


def _of_rollouts(facts: Facts) -> Iterator[Metric]:
    begun = GaugeMetricFamily(
        "refit_rollout_begun_timestamp_seconds", "When a rollout began.", labels=(*_IMAGE, "state")
    )
    moved = GaugeMetricFamily(
        "refit_rollout_sessions",
        "Sessions of a rollout's profile, by whether they have its image.",
        labels=(*_IMAGE, "moved"),
    )
    on_it = Counter((s.profile, s.release, s.image) for s in facts.sessions)
    everybody = Counter((s.profile, s.release) for s in facts.sessions)
    for rollout in facts.rollouts:
        labels = (rollout.profile, rollout.release, rollout.image)
        begun.add_metric((*labels, rollout.way), rollout.begun.timestamp())
        if rollout.way in ("running", "paused"):
            on_image = on_it[labels]
            moved.add_metric((*labels, "true"), on_image)
            moved.add_metric((*labels, "false"), everybody[labels[:2]] - on_image)
    yield begun
    yield moved


def _of_moves(facts: Facts) -> Iterator[Metric]:
    yield _gauge(
        "refit_moves",
        "Moves of sessions, by how they stand, and by the step at which they were given up.",
        ("state", "step"),
        facts.moves,
    )
    about = "Moves that have not ended, and on which nobody works."
    yield _gauge("refit_moves_interrupted", about, (), {(): facts.interrupted})
    seconds = HistogramMetricFamily(
        "refit_move_downtime_seconds", "How long sessions were away, from the request to stop until the IDE answered."
    )
    seconds.add_metric((), buckets(facts.downtimes), sum(facts.downtimes))
    yield seconds


def _of_pool(room: Room | None) -> Iterator[Metric]:
    if room:
        yield _gauge("refit_pool_size_bytes", "How large the pool of homes is.", (), {(): room.size})
        yield _gauge("refit_pool_free_bytes", "How much of the pool of homes is free.", (), {(): room.free})


def _of_services(facts: Facts) -> Iterator[Metric]:
    up: dict[Labels, float] = {(name,): answers for name, answers in facts.services.items()}
    yield _gauge("refit_service_up", "Whether a service answers.", ("service",), up)


def _of_runs(runs: Runs) -> Iterator[Metric]:
    yield _gauge("refit_queue_runs", "Runs that are due or under way.", ("queue", "state"), runs.open)
    metrics: tuple[tuple[str, str, Callable[[FlowRun], float]], ...] = (
        ("success", "Whether the last run of a flow ended well.", lambda run: run.state_type == "COMPLETED"),
        (
            "end_timestamp_seconds",
            "When the last run of a flow ended.",
            lambda run: run.end_time.timestamp() if run.end_time else 0.0,
        ),
        ("duration_seconds", "How long the last run of a flow took.", lambda run: run.total_run_time),
    )
    for name, about, value in metrics:
        values: dict[Labels, float] = {(flow,): value(run) for flow, run in runs.last.items()}
        yield _gauge(f"refit_flow_last_{name}", about, ("flow",), values)


def buckets(seconds: Iterable[float]) -> list[tuple[str, float]]:
    """How many took at most as long as each bucket says; the last has all of them."""
    within = Counter(bisect_left(BUCKETS, length) for length in seconds)
    limits = [*map(str, BUCKETS), "+Inf"]
    return [(limit, float(sum(within[n] for n in range(number + 1)))) for number, limit in enumerate(limits)]


def _each(sessions: Sequence[SessionFact], chosen: Callable[[SessionFact], bool]) -> Mapping[Labels, float]:
    """Profile and release → how many of their sessions are such; 0 is said as well."""
    counts: dict[Labels, float] = dict.fromkeys(((s.profile, s.release) for s in sessions), 0.0)
    for session in filter(chosen, sessions):
        counts[session.profile, session.release] += 1
    return counts


def _gauge(name: str, about: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Metric:
    metric = GaugeMetricFamily(name, about, labels=labels)
    for key, value in sorted(values.items()):
        metric.add_metric(key, value)
    return metric
