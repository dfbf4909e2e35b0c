"""PostgreSQL keeps the contract of databases, as SQLite does; and survives what only a server can: a restart."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from flows.core import command
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import lease, still_held
from tests.support import tiny
from tests.support.building import executions, graph_of, nap_of
from tests.support.database_contract import DatabaseContract
from tests.support.leftovers import assert_clean, sleepers
from tests.support.machine import private_home, serve_registry
from tests.support.machines import builder, hand_over, handing
from tests.support.simulated.replicas import check_that_one_acts, check_that_who_was_taken_for_dead_does_nothing_more
from tests.support.waiting import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.long

PASSWORD = secrets.token_hex(16)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    """A server's data, and the loopback port that it answers on."""

    folder: Path
    port: int

    def url(self, name: str, password: str = PASSWORD) -> str:
        return f"postgresql://refit:{password}@127.0.0.1:{self.port}/{name}"

    def make(self, password_file: Path) -> None:
        options = ["--username=refit", f"--pwfile={password_file}", "--auth=scram-sha-256", "--encoding=UTF8"]
        self._run("initdb", *options, "--no-sync")

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories='' -c fsync=off"
        self._run("pg_ctl", "start", "--wait", f"--log={self.folder / 'log'}", f"--options={options}")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--mode=fast")

    def add_database(self) -> str:
        """Make one that is empty; returns its URL."""
        name = f"refit_{next(_numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def _run(self, program: str, *words: str) -> None:
        # Debian keeps the server's programs out of PATH, and PostgreSQL refuses to run as root.
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        somebody = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        path = str(folders[-1] / program) if folders else program
        command.run([*somebody, path, f"--pgdata={self.folder / 'data'}", *words], cwd=self.folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not below pytest's folder: that one only its owner may enter, and the server runs as another.
    with tempfile.TemporaryDirectory(prefix="refit-postgresql-") as name:
        folder, word = Path(name), Path(name, "password")
        word.write_text(PASSWORD)
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            shutil.chown(word, "postgres")
        made = Cluster(folder, free_port())
        made.make(word)
        made.start()
        try:
            yield made
        finally:
            made.stop()


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
