"""Side-by-side benchmarks: `python -m bench` runs all, `python -m bench NAME …` some; `--help` lists them."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

# Prefect reads these when it is imported. It makes its folder then, and nobody's own is to be touched.
os.environ |= {
    "PREFECT_HOME": tempfile.mkdtemp(prefix="refit-bench-"),
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # It is ended with events in its queue, of which it prints pages.
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
# Registered first, so that it is the last that happens.
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)

from bench.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
