"""A PostgreSQL of its own, from Debian's packages."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from flows.core.programs import command
from tests.support.waiting import free_port

PASSWORD = secrets.token_hex(16)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    """A server's data, and where it answers: at another address than loopback, everybody there may log in."""

    folder: Path
    port: int
    address: str = "127.0.0.1"

    def url(self, name: str, password: str = PASSWORD) -> str:
        return f"postgresql://refit:{password}@{self.address}:{self.port}/{name}"

    def make(self, password_file: Path) -> None:
        options = ["--username=refit", f"--pwfile={password_file}", "--auth=scram-sha-256", "--encoding=UTF8"]
        self._run("initdb", *options, "--no-sync")
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.0.0.0/8 scram-sha-256\n")

    def start(self) -> None:
        options = f"-c listen_addresses={self.address} -c port={self.port} -c unix_socket_directories='' -c fsync=off"
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


@contextmanager
def postgresql(address: str = "127.0.0.1") -> Iterator[Cluster]:
    """A server of its own, as long as the `with` block lasts."""
    # Not below pytest's folder: that one only its owner may enter, and the server runs as another.
    with tempfile.TemporaryDirectory(prefix="refit-postgresql-") as name:
        folder, word = Path(name), Path(name, "password")
        word.write_text(PASSWORD)
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            shutil.chown(word, "postgres")
        made = Cluster(folder, free_port(), address)
        made.make(word)
        made.start()
        try:
            yield made
        finally:
            made.stop()
