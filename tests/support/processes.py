"""Processes of their own: forks of the one that tests, which end as their work does."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from threading import RLock
from typing import NoReturn

import psutil

_FORKS = RLock()


def in_a_process(work: Callable[[], object]) -> BaseProcess:
    """A process of its own for `work`: a fork, because that starts at once."""
    process = get_context("fork").Process(target=_to_the_end, args=(work,))
    with _FORKS:
        process.start()
    return process


def between_forks(work: Callable[[], object]) -> Callable[[], None]:
    """The same work, at moments at which this process is not forked by `in_a_process`.

    A process that is forked while a thread reads from a program has the other end of that pipe, so that the thread
    would read on until that process ends.
    """

    def held() -> None:
        with _FORKS:
            work()

    return held


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: one that has ended may still wait to be reaped, by whichever process became its parent."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _to_the_end(work: Callable[[], object]) -> NoReturn:
    code: object = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not Python's own end: Prefect's handlers for that, wherever a flow has run, fail in a fork, without a word.
        os._exit(code if isinstance(code, int) else 1)
