"""Side-by-side benchmarks: `python -m bench` runs all, `python -m bench NAME …` some; `--help` lists them."""

from __future__ import annotations

import os
import sys
import tempfile

# Prefect reads these when it is imported. It makes its folder then, and nobody's own is to be touched.
os.environ |= {
    "PREFECT_HOME": tempfile.mkdtemp(prefix="refit-bench-"),
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # It is ended with events in its queue, of which it prints pages.
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
from bench.cli import main
from tests.support.guard import guard

guard(os.environ["PREFECT_HOME"])

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
