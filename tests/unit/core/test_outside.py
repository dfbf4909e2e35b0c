"""HTTP to others: answers have a limit in bytes and in time, and a login is told to nobody else."""

from __future__ import annotations

import lzma
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from io import BytesIO
from pathlib import Path
from threading import Event

import httpx
import pytest
from pydantic import SecretStr

from flows.core import outside
from flows.core.errors import RefitError
from flows.core.outside import Astray, Bounds, Client, TooLarge, TooSlow
from flows.core.settings import Settings
from flows.images import patience
from flows.images.builder import fetching
from flows.locks import debian_archive, mirror, simple_index, vulnerabilities
from flows.locks.debian_archive import ArchiveError
from flows.locks.simple_index import Index, Unreadable
from flows.services import process
from flows.services.service import Service
from tests.support.liars import Eavesdropper, Request, Said
from tests.support.waiting import serving

LIMITS = Bounds(1 << 16, 1.0)
ENOUGH = Bounds(1 << 16, 60.0)


@contextmanager
def answering(answer: Callable[[Request], Said | None]) -> Iterator[str]:
    class Handler(Request):
        def take(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.body = self.rfile.read(length)
            if said := answer(self):
                self.answer(said)

        do_GET = do_HEAD = do_POST = do_PUT = take  # noqa: N815

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def drip(request: Request) -> None:
    request.answer(Said(200, {"transfer-encoding": "chunked"}))
    request.drip(b"1\r\nx\r\n", pause=lambda: Event().wait(0.02))


def endless(request: Request) -> None:
    request.answer(Said(200, {"transfer-encoding": "chunked"}))
    request.drip(b"1000\r\n" + bytes(0x1000) + b"\r\n")


def silent(request: Request) -> None:
    request.be_silent()


@pytest.mark.slow
@pytest.mark.parametrize("answer", [drip, silent])
def test_a_request_has_a_limit_in_time_as_a_whole(answer: Callable[[Request], None]) -> None:
    with answering(answer) as url, Client(False) as client:
        started = time.monotonic()
        with pytest.raises(TooSlow, match="longer than 1 s"):
            client.fetch("GET", url, LIMITS)
        assert 0.9 < time.monotonic() - started < 30


@pytest.mark.slow
def test_it_holds_through_a_proxy() -> None:
    with answering(drip) as url, Client(False, proxy=url) as client, pytest.raises(TooSlow, match="longer than"):
        client.fetch("GET", "http://elsewhere.invalid/", LIMITS)


@pytest.mark.slow
def test_it_holds_for_what_the_environment_says_is_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(drip) as url:
        monkeypatch.setenv("http_proxy", url)
        with Client(False) as client, pytest.raises(TooSlow, match="longer than"):
            client.fetch("GET", "http://elsewhere.invalid/", LIMITS)


@pytest.mark.slow
def test_it_holds_for_what_is_sent_to_somebody_who_does_not_listen() -> None:
    over = Event()

    class Deaf(Request):
        def hear_nothing(self) -> None:
            over.wait()

        do_PUT = hear_nothing  # noqa: N815

    def much() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(1 << 20)

    with serving(Deaf) as port, Client(False) as client, pytest.raises(TooSlow, match="longer than"):
        try:
            client.exchange("PUT", f"http://127.0.0.1:{port}", LIMITS, content=much())
        finally:
            over.set()


@pytest.mark.slow
def test_an_outer_limit_counts_for_all_requests() -> None:
    with answering(silent) as url, Client(False) as client, outside.within(0.5):
        for _ in range(3):
            with pytest.raises(TooSlow, match=r"longer than 0\.5 s"):
                client.fetch("GET", url, ENOUGH)


def test_a_body_has_a_limit_in_bytes() -> None:
    taken: list[int] = []
    with answering(endless) as url, Client(False) as client, pytest.raises(TooLarge, match="65536"):
        client.fetch("GET", url, ENOUGH, sink=lambda piece: taken.append(len(piece)))
    assert sum(taken) <= LIMITS.size


def test_a_connection_is_used_again_unless_something_is_left_in_it() -> None:
    ports: list[int] = []

    def note(request: Request) -> Said | None:
        ports.append(request.client_address[1])
        return endless(request) if request.path == "/endless" else Said(404, {"content-length": "2"}, b"no")

    with answering(note) as url, Client(False) as client:
        for path in ("/", "/", "/endless", "/"):
            with suppress(TooLarge):
                client.fetch("GET", url + path, ENOUGH)
    assert ports[0] == ports[1] == ports[2] != ports[3]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_what_is_packed_as_nobody_asked_is_refused(encoding: str) -> None:
    said = Said(200, {"content-encoding": encoding, "content-length": "1"}, b"x")
    with answering(lambda _: said) as url, Client(False) as client, pytest.raises(httpx.DecodingError):
        client.fetch("GET", url, ENOUGH)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "http://[::", "gopher://x", "http:///x", "", "/again"])
def test_what_leads_nowhere(place: str) -> None:
    said = Said(302, {"location": place, "content-length": "0"})
    kinds = (Astray, httpx.RemoteProtocolError)  # httpx itself refuses some
    with answering(lambda _: said) as url, Client(False) as client, pytest.raises(kinds):
        client.fetch("GET", url, ENOUGH)


# --- Indexes, mirrors, OSV ----------------------------------------------------------------------------------------


def test_the_password_of_an_index_is_told_to_nobody_it_sends_us_to(settings: Settings) -> None:
    page = b'{"files": [{"filename": "x-1.whl", "hashes": {"sha256": "00"}}]}'
    said = Said(200, {"content-type": "application/json", "content-length": str(len(page))}, page)
    asked: list[str] = []
    with Eavesdropper(lambda _: said).serve() as elsewhere:

        def send_on(request: Request) -> Said:
            asked.append(request.headers["Authorization"])
            return Said(302, {"location": f"{elsewhere.url}/x", "content-length": "0"})

        with answering(send_on) as url:
            index = Index(SecretStr(url.replace("//", "//ann:a-word-that-nobody-else-hears@") + "/simple"))
            result = simple_index.fetch(index, dict.fromkeys(simple_index.urls(index, ["x"]).values()), settings)
    assert not any(isinstance(page, Unreadable) for page in result.values())
    assert asked[0].startswith("Basic ")
    assert elsewhere.told and not elsewhere.knows


@pytest.mark.slow
@pytest.mark.parametrize("answer", [drip, endless, silent])
def test_an_index_that_never_ends_is_unreadable(
    settings: Settings, answer: Callable[[Request], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_index, "_BOUNDS", LIMITS)
    with answering(answer) as url:
        index = Index(SecretStr(f"{url}/simple"))
        [result] = simple_index.fetch(index, dict.fromkeys(simple_index.urls(index, ["x"]).values()), settings).values()
        assert isinstance(result, Unreadable) and "longer than" in result.reason
        with pytest.raises(RefitError, match="doesn't say when"):
            simple_index.uploads(index, ["x"], settings)


def test_a_page_that_is_too_deep_is_unreadable() -> None:
    with pytest.raises(ValueError, match="no page"):
        simple_index.digest("[" * 200_000, is_json=True)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [drip, endless, silent])
def test_a_mirror_that_never_ends_is_an_error(
    settings: Settings, answer: Callable[[Request], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_BOUNDS", LIMITS)
    with answering(answer) as url:
        with pytest.raises(RefitError, match="longer than"):
            mirror.state({"x": url}, "x", settings, RefitError)
        with debian_archive.connection(settings) as client, pytest.raises(ArchiveError) as caught:
            debian_archive.download(client, url, bounds=LIMITS).__enter__()
        assert "longer than" in caught.value.why


@pytest.mark.slow
@pytest.mark.parametrize("answer", [drip, endless, silent])
def test_an_osv_service_that_never_ends_is_an_error(
    settings: Settings, answer: Callable[[Request], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vulnerabilities, "_BOUNDS", LIMITS)
    with answering(answer) as url, pytest.raises(vulnerabilities.Unasked) as caught:
        vulnerabilities.ask([("x", "1")], settings.model_copy(update={"osv_service": url}))
    assert "longer than" in caught.value.why


@pytest.mark.slow
@pytest.mark.parametrize("body", [b'{"results":[{"next_page_token":"x"}]}', b"[" * 200_000, b"[]", b"{}"])
def test_an_osv_service_whose_pages_never_end_or_are_none(settings: Settings, body: bytes) -> None:
    said = Said(200, {"content-length": str(len(body))}, body)
    with answering(lambda _: said) as url, pytest.raises(vulnerabilities.Unasked) as caught:
        vulnerabilities.ask([("x", "1")], settings.model_copy(update={"osv_service": url}))
    assert url in str(caught.value)


def test_a_download_is_there_however_long_it_is(settings: Settings) -> None:
    with answering(endless) as url:
        assert fetching.unreachable([url], settings) == {}


def test_a_list_of_packages_has_a_limit_when_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_archive, "_MOST_UNPACKED", 4 << 20)
    packed = lzma.compress(bytes(6 << 20), preset=0)
    monkeypatch.setattr(debian_archive, "_LONGEST_STANZA", 1 << 20)
    with pytest.raises(ArchiveError) as caught:
        [*debian_archive.unpacked(BytesIO(packed))]
    assert "no end" in caught.value.why
    monkeypatch.setattr(debian_archive, "_LONGEST_STANZA", 1 << 30)
    with pytest.raises(ArchiveError) as caught:
        [*debian_archive.unpacked(BytesIO(packed))]
    assert "unpacked it has more" in caught.value.why
    with pytest.raises(ArchiveError, match="can't be unpacked"):
        [*debian_archive.unpacked(BytesIO(b"nothing"))]


@pytest.mark.slow
@pytest.mark.parametrize("answer", [drip, endless, silent])
def test_what_listens_in_the_place_of_a_service_is_not_listened_to_for_ever(
    tmp_path: Path, answer: Callable[[Request], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REQUEST_SECONDS", 1.0)
    with answering(answer) as url:
        service = Service("it", "it", (), tmp_path, tmp_path / "log", url, healthy=lambda said: said.text == "ok")
        assert not process.answers(service)
    with answering(lambda _: Said(200, {"content-length": "2"}, b"ok")) as url:
        assert process.answers(replace(service, health=url))


# --- Waiting for a registry that is busy --------------------------------------------------------------------------


def test_a_time_to_wait_is_seconds_or_a_date() -> None:
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    later = {"retry-after": format_datetime(now + timedelta(seconds=90), usegmt=True)}
    assert patience.asked_for({"retry-after": "17"}, now) == 17
    assert patience.asked_for(later, now) == 90
    for text in ("", "soon", "-1", "1e9", "Fri, 99 Foo", "9" * 5000, format_datetime(now - timedelta(days=1))):
        assert patience.asked_for({"retry-after": text}, now) in (0, 999_999_999)


def test_nobody_comes_back_sooner_than_asked_and_not_all_at_once() -> None:
    assert patience.wait(10, 1, 0.0) == 10
    assert patience.wait(10, 1, 1.0) == 12.5
    assert patience.wait(0, 1000, 0.0) == 30
    assert [round(patience.pause(number), 1) for number in range(5)] == [0, 0.2, 0.6, 1.4, 3]
