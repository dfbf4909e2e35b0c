"""Known vulnerabilities: which of them hold a locked package, and which only a forbidden move would mend."""

from __future__ import annotations

import json
import zipfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.core.documents import Mistakes
from flows.core.settings import Settings
from flows.locks import vulnerabilities
from flows.locks.policy import Bounds
from flows.locks.vulnerabilities import Record, Unasked, Vulnerability
from tests.support.waiting import free_port, serving

RECORD = {
    "id": "GHSA-x",
    "aliases": ["CVE-2026-1"],
    "summary": "anything else",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "Urllib3"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}, {"fixed": "abcdef"}]},
                {
                    "type": "ECOSYSTEM",
                    "events": [
                        {"introduced": "2.0"},
                        {"fixed": "2.6.3"},
                        {"introduced": "0"},
                        {"fixed": "1.26.21"},
                    ],
                },
            ],
        }
    ],
}
BOUNDS = Bounds("2026a", {"packages": {"urllib3": "2.5.0"}})


def reported(version: str, record: dict[str, object] = RECORD) -> list[Vulnerability]:
    return vulnerabilities.affecting([Record.model_validate(record)], {"urllib3": version, "six": "1.17.0"})


@pytest.mark.parametrize(
    ("version", "mended"),
    [("1.25", ("1.26.21", "2.6.3")), ("2.5.0", ("2.6.3",)), ("2.0.0rc1", None), ("1.26.21", None), ("2.6.3", None)],
)
def test_a_version_is_held_by_ranges(version: str, mended: tuple[str, ...] | None) -> None:
    assert [one.mended for one in reported(version)] == ([] if mended is None else [mended])


def test_a_version_is_held_by_name_or_up_to_the_last() -> None:
    last = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"last_affected": "2.5.0"}]}
    affected = {"package": {"ecosystem": "PyPI", "name": "urllib3"}, "ranges": [last], "versions": ["9.9"]}
    record = {"id": "x", "affected": [affected]}
    assert [bool(reported(version, record)) for version in ("2.5.0", "2.5.1", "9.9")] == [True, False, True]


def test_what_was_withdrawn_or_belongs_elsewhere_does_not_count() -> None:
    assert not reported("2.5.0", {**RECORD, "withdrawn": "2026-01-01T00:00:00Z"})
    elsewhere = {**RECORD["affected"][0], "package": {"ecosystem": "npm", "name": "urllib3"}}
    assert not reported("2.5.0", {**RECORD, "affected": [elsewhere]})


def test_only_what_a_forbidden_move_would_mend_is_named() -> None:
    (one,) = vulnerabilities.unmended(reported("2.5.0"), BOUNDS)
    assert str(one) == "urllib3 2.5.0: GHSA-x, CVE-2026-1, mended in 2.6.3"
    assert not vulnerabilities.unmended(reported("2.5.0"), Bounds("2026a", {"packages": {"urllib3": "2.6.0"}}))


def test_records_come_from_a_file_or_an_archive(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(RECORD))
    (tmp_path / "list.json").write_text(json.dumps([RECORD, RECORD]))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("GHSA-x.json", json.dumps(RECORD))
    counts = [len(vulnerabilities.read(tmp_path / name, {"urllib3"})) for name in ("one.json", "list.json", "all.zip")]
    assert counts == [1, 2, 1]
    assert not vulnerabilities.read(tmp_path / "all.zip", {"six"})


@pytest.mark.slow
@given(
    st.binary(max_size=200)
    | st.recursive(st.text() | st.integers(), st.lists).map(lambda data: json.dumps(data).encode())
)
def test_anything_else_is_a_mistake_with_its_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("osv") / "file"
    file.write_bytes(content)
    try:
        records = vulnerabilities.read(file, {"urllib3"})
    except Mistakes as caught:
        assert caught.mistakes[0].file == file
    else:
        assert all(isinstance(record, Record) for record in records)


class Service(BaseHTTPRequestHandler):
    """Knows one record of urllib3 2.5.0, and tells of it on the second page."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        self.answer({"results": [self.result(query) for query in queries]})

    def result(self, query: dict[str, object]) -> dict[str, object]:
        if (query["package"], query["version"]) != ({"name": "urllib3", "ecosystem": "PyPI"}, "2.5.0"):
            return {}
        return {"vulns": [{"id": "GHSA-x"}]} if query.get("page_token") == "2" else {"next_page_token": "2"}

    def do_GET(self) -> None:
        self.answer(RECORD if self.path == "/v1/vulns/GHSA-x" else {"message": "not found"})

    def answer(self, content: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_service_is_asked_for_versions_and_then_for_what_it_knows_of_them(settings: Settings) -> None:
    packages = {"urllib3": "2.5.0", "six": "1.17.0"}
    with serving(Service) as port:
        here = settings.model_copy(update={"osv_service": f"http://127.0.0.1:{port}"})
        (one,) = vulnerabilities.affecting(vulnerabilities.ask(packages.items(), here), packages)
        assert vulnerabilities.ask([("six", "1.17.0")], here) == ()
    assert (one.package, one.mended) == ("urllib3", ("2.6.3",))


def test_a_service_that_cant_be_asked_is_named_with_the_file_that_takes_its_place(settings: Settings) -> None:
    here = settings.model_copy(update={"osv_service": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(Unasked, match="osv_file"):
        vulnerabilities.ask([("six", "1.17.0")], here)
