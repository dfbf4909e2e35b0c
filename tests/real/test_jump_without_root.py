"""The jump host of an ordinary user: all that `test_jump.py` asks of one, and real programs, without sudo."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.ordinary_user import somebody
from tests.support.waiting import GIVEN_SPANS, free_span

RUN = """
import os, sys, pytest

assert os.geteuid() != 0
os.chdir(sys.argv[1])
folder = ["-p", "no:cacheprovider", "--basetemp", sys.argv[2]]
sys.exit(pytest.main(["-q", "-rA", *folder, "tests/real/test_jump.py"]))
"""
SPANS = 3


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes an ordinary user, who runs the tests")
def test_an_ordinary_user_has_a_jump_host_that_keeps_all_of_it() -> None:
    with TemporaryDirectory(prefix="refit-user-") as name:
        folder = Path(name)
        user = somebody(folder)
        user.environment[GIVEN_SPANS] = " ".join(str(free_span().first) for _ in range(SPANS))
        process = user.starts(RUN, folder / "checkout", folder / "pytest")
        output, _ = process.communicate()
        print(output)
        assert process.returncode == 0
