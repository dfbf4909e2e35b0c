"""SQLite keeps the contract of databases; and URLs that can't be used."""

import sys
from pathlib import Path

import pytest

from flows import database
from flows.errors import RefitError
from tests.database_contract import DatabaseContract


class TestSqlite(DatabaseContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/refit.db"


def test_a_database_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(RefitError, match="can't be opened"):
        database.open_database("sqlite:////proc/nowhere/refit.db")


@pytest.mark.parametrize("url", ["nonsense", "never://heard.of/it"])
def test_a_url_that_is_none_is_a_clear_error(url: str) -> None:
    with pytest.raises(RefitError, match="can't be used"):
        database.open_database(url)


def test_a_driver_that_is_missing_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(RefitError, match="needs psycopg") as caught:
        database.open_database("postgresql://ann:secret@127.0.0.1/refit")
    assert "refit[postgresql]" in caught.value.fix
    assert "secret" not in str(caught.value)
