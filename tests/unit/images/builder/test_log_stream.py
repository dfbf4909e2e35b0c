import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import pytest

from flows.core.programs import command, program_output
from flows.images.builder import log_stream
from flows.images.builder.log_stream import Live
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

RUN: ContextVar[str] = ContextVar("run", default="nobody's")


class Heard(logging.Handler):
    """The lines, and the runs that they belong to, as Prefect's handler finds it out."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.pages.append((RUN.get(), record.getMessage()))


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    log_stream.logger.addHandler(handler)
    yield handler
    log_stream.logger.removeHandler(handler)


@contextmanager
def run_of(name: str) -> Iterator[None]:
    token = RUN.set(name)
    try:
        yield
    finally:
        RUN.reset(token)


def test_what_a_program_says_goes_to_the_run_that_started_it_without_secrets(heard: Heard, tmp_path: Path) -> None:
    program_output.protect("s3cret-of-a-mirror")
    with run_of("ours"), command.logged(tmp_path / "log", Live("base")) as log:
        command.run(["sh", "-c", "echo one; echo s3cret-of-a-mirror >&2; sleep 0.1; echo"])
        command.run(["echo", "two"])
        command.run(["echo", "three"], secret=True)
    assert {run for run, _ in heard.pages} == {"ours"}
    first, second = (page.split("\n") for _, page in heard.pages)
    assert sorted(first) == ["", "***", "base:", "one"] and second == ["base:", "two"]
    assert "s3cret-of-a-mirror" not in log.read_text()


def test_a_line_is_heard_while_its_program_still_runs(heard: Heard, tmp_path: Path) -> None:
    def go_on(line: str | None) -> None:
        said(line)
        if line:
            wait_until(lambda: heard.pages)
            (tmp_path / "heard").touch()

    with run_of("ours"):
        said = Live("base")
        with command.logged(tmp_path / "log", go_on):
            command.run(["sh", "-c", f"echo one; until [ -e {tmp_path}/heard ]; do sleep 0.02; done"], limit=PATIENCE)
    assert heard.pages == [("ours", "base:\none")]


def test_who_says_much_is_heard_in_large_pages(heard: Heard, tmp_path: Path) -> None:
    with command.logged(tmp_path / "log", Live("base")):
        command.run(["seq", "100000"])
    pages = [page.removeprefix("base:\n") for _, page in heard.pages]
    assert "\n".join(pages) == "\n".join(map(str, range(1, 100_001)))
    assert all(len(page) <= log_stream.PAGE_SIZE + 8 for page in pages)


def test_nothing_is_sent_for_a_program_that_says_nothing(heard: Heard, tmp_path: Path) -> None:
    with command.logged(tmp_path / "log", Live("base")):
        command.run(["true"])
    assert heard.pages == []
