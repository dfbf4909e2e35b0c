"""PostgreSQL keeps the contract of databases, as SQLite does; and survives what only a server can: a restart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import lease, still_held
from tests.support import tiny
from tests.support.building import executions, graph_of, nap_of
from tests.support.database_contract import DatabaseContract
from tests.support.leftovers import assert_clean, sleepers
from tests.support.machine import private_home, serve_registry
from tests.support.machines import builder, hand_over, handing
from tests.support.postgresql import PASSWORD, Cluster, postgresql
from tests.support.simulated.replicas import check_that_one_acts, check_that_who_was_taken_for_dead_does_nothing_more
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgresql() as cluster:
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.add_database()


class TestPostgresql(DatabaseContract):
    """The whole contract."""


def test_a_wrong_password_and_a_database_that_is_not_there(cluster: Cluster) -> None:
    for bad in (cluster.url("postgres", "guessed"), cluster.url("never_made")):
        with pytest.raises(RefitError, match="can't be opened") as caught:
            open_database(bad)
        assert re.search("password authentication failed|does not exist", caught.value.why)
        assert PASSWORD not in str(caught.value) and "guessed" not in str(caught.value)


def test_a_server_that_was_restarted(cluster: Cluster, url: str) -> None:
    engine = open_database(url)
    with lease(engine, "released") as first:
        pass
    with lease(engine, "held") as held:
        cluster.stop()
        try:
            with pytest.raises(RefitError, match="can't be opened"):
                open_database(url)
        finally:
            cluster.start()
        with engine.begin() as connection:
            still_held(connection, held)
    with lease(engine, "released") as second:
        assert second.fence == first.fence + 1


@pytest.mark.long
def test_a_builder_goes_on_when_the_database_was_restarted(cluster: Cluster, url: str, tmp_path: Path) -> None:
    nap = nap_of(6)
    graph = graph_of(tiny.root(), tiny.on("root", "slow", nap), tiny.on("slow", "top"))
    with (
        serve_registry(tmp_path / "registry") as server,
        private_home(tmp_path / "home", server.port, database_url=url) as settings,
    ):
        with ThreadPoolExecutor(3) as pool, handing(settings, graph) as handover:
            process = builder(settings, handover, "one")
            futures = hand_over(handover, graph, pool)
            wait_until(lambda: sleepers(str(nap)))
            cluster.stop()
            cluster.start()
            assert {future.result(PATIENCE).how for future in futures.values()} == {"built"}
        process.join()
        assert process.exitcode == 0
        assert [executions(settings, name) for name in graph.stages] == [1, 1, 1]
        assert_clean(settings)


def test_a_lease_that_cannot_be_given_back_runs_out(cluster: Cluster, url: str) -> None:
    engine = open_database(url)
    with lease(engine, "held", seconds=1):
        cluster.stop()
    cluster.start()
    with lease(engine, "held", wait=5) as again:
        assert again.fence == 2


def test_f07_of_two_engines_never_both_act_on_one_session(url: str, tmp_path: Path) -> None:
    check_that_one_acts(tmp_path, url)


def test_f07_an_engine_that_was_taken_for_dead_and_wakes_up_does_nothing_more(url: str, tmp_path: Path) -> None:
    check_that_who_was_taken_for_dead_does_nothing_more(tmp_path, url)
