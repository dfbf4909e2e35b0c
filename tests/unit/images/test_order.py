"""The order of jobs: nothing before what it needs, nothing twice, nothing forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from flows.images.order import Order

# Each job needs some of lower numbers, or none.
GRAPHS = st.lists(st.sets(st.integers(0, 30), max_size=2), min_size=1, max_size=30)


def names(graph: list[set[int]]) -> dict[str, set[str]]:
    return {f"job{number}": {f"job{need}" for need in needs if need < number} for number, needs in enumerate(graph)}


def test_the_most_urgent_first_and_equals_in_their_order() -> None:
    order = Order({"a": (), "b": (), "c": ()}, {"a": 1.0, "b": 2.0, "c": 1.0})
    assert [order.start() for _ in range(4)] == ["b", "a", "c", None]


def test_what_there_is_no_room_for_waits_and_lets_others_pass() -> None:
    order = Order({"large": (), "small": ()}, {"large": 1.0})
    assert [order.start(lambda job: job != "large"), order.start(lambda job: job != "large")] == ["small", None]
    assert order.start() == "large"


def test_of_those_that_make_the_same_one_goes_ahead() -> None:
    needs = dict.fromkeys(["one", "two", "three", "other"], ())
    order = Order(needs, {}, dict.fromkeys(["one", "two", "three"], "layer"))
    assert [order.start() for _ in range(3)] == ["one", "other", None]
    order.done("one")
    assert [order.start() for _ in range(3)] == ["two", "three", None]


def test_where_one_fails_to_make_it_another_tries() -> None:
    order = Order(
        {"one": (), "two": (), "three": (), "on one": ("one",)}, {}, dict.fromkeys(["one", "two", "on one"], "it")
    )
    assert [order.start() for _ in range(3)] == ["one", "three", None]
    assert order.failed("one") == ("on one",)
    assert [order.start(), order.start()] == ["two", None]


def test_what_is_no_job_counts_as_done() -> None:
    assert Order({"child": ("reused parent",)}, {}).start() == "child"


def test_what_needs_two_starts_after_both() -> None:
    order = Order({"one": (), "two": (), "both": ("one", "two")}, {"both": 9.0})
    assert [order.start() for _ in range(3)] == ["one", "two", None]
    order.done("two")
    assert order.start() is None
    order.done("one")
    assert order.start() == "both"


def test_what_was_done_along_with_another_never_starts() -> None:
    order = Order({"below": (), "along": ("below",), "left": ("below",), "above": ("along",)}, {})
    assert [order.start(), order.start()] == ["below", None]
    order.done("below")
    order.done("along")
    assert [order.start() for _ in range(3)] == ["left", "above", None]


@given(GRAPHS, st.integers(1, 4), st.randoms(), st.integers(1, 9))
def test_every_job_starts_once_and_after_what_it_needs(
    graph: list[set[int]], at_once: int, random: object, things: int
) -> None:
    needs = names(graph)
    makes = {job: str(number % things) for number, job in enumerate(needs) if number % 2}
    order, running, done = Order(needs, {}, makes), [], []
    while True:
        while len(running) < at_once and (job := order.start()):
            assert needs[job] <= set(done)
            running.append(job)
        if not running:
            break
        ended = running.pop(random.randrange(len(running)))
        done.append(ended)
        order.done(ended)
    assert sorted(done) == sorted(needs)


@given(GRAPHS, st.data())
def test_what_needs_a_failed_job_never_starts_and_all_else_does(graph: list[set[int]], data: st.DataObject) -> None:
    needs = names(graph)
    bad = data.draw(st.sampled_from(sorted(needs)))
    order, started, lost = Order(needs, {}), [], ()
    while job := order.start():
        started.append(job)
        if job == bad:
            lost = order.failed(job)
        else:
            order.done(job)
    assert sorted((*started, *lost)) == sorted(needs)

    def stands_on_it(job: str) -> bool:
        return any(need == bad or stands_on_it(need) for need in needs[job])

    assert set(lost) == {job for job in needs if stands_on_it(job)}
