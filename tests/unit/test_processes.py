"""Code that tests run in a process of its own ends as it would by itself, whatever the tests have begun."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from tests.support.processes import in_a_process


def fails() -> object:
    raise ValueError("the work went wrong")


@pytest.mark.parametrize(("work", "code"), [(lambda: None, 0), (lambda: sys.exit(7), 7), (fails, 1)])
def test_a_process_of_its_own_ends_as_its_work_does(
    work: Callable[[], object], code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # As Prefect's services do it in a fork of a process in which a flow has run.
    monkeypatch.setattr(threading, "_threading_atexits", [fails])
    process = in_a_process(work)
    process.join()
    assert process.exitcode == code
    assert ("the work went wrong" in capfd.readouterr().err) == (work is fails)
