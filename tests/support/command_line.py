"""The `refit` command in this process, which takes a tenth of the CPU of a program that imports everything anew."""

from __future__ import annotations

import io
import logging
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from flows.cli.main import main


def in_process(home: Path, *words: str, typed: str = "", **variables: str) -> CompletedProcess[str]:
    """Run `refit WORDS` with this home as its program does, with exit code and both outputs; `typed` is its input."""
    output, errors = io.StringIO(), io.StringIO()
    factory, terminated = logging.getLogRecordFactory(), signal.getsignal(signal.SIGTERM)
    code: object = 0
    try:
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(output), redirect_stderr(errors):
            for name, value in {"REFIT_HOME": str(home), **variables}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "argv", ["refit", *words])
            patched.setattr(sys, "stdin", io.StringIO(typed))
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        logging.setLogRecordFactory(factory)
        signal.signal(signal.SIGTERM, terminated)
    assert isinstance(code, int)
    return CompletedProcess(["refit", *words], code, output.getvalue(), errors.getvalue())
