"""Side-by-side benchmarks: `python -m bench` runs all, `python -m bench NAME …` some, `python -m bench table` none."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile

# Prefect reads these when it is imported. It makes its folder then, and nobody's own is to be touched.
os.environ |= {
    "PREFECT_HOME": tempfile.mkdtemp(prefix="refit-bench-"),
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
# Registered first, so that it is the last that happens.
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)

from bench import freshness, installer, matrix, nightly, plan, results, rollout  # noqa: E402
from flows.errors import UnknownName  # noqa: E402

BENCHMARKS = {
    "matrix": matrix.run,
    "plan": plan.run,
    "freshness": freshness.run,
    "installer": installer.run,
    "nightly": nightly.run,
    "rollout": rollout.run,
}


def main(names: list[str]) -> int:
    """Run benchmarks, write down each as soon as it is done, and print the table; 1: a goal wasn't reached."""
    logging.disable(logging.INFO)
    for name in [] if names == ["table"] else names or list(BENCHMARKS):
        if name not in BENCHMARKS:
            raise SystemExit(str(UnknownName("benchmark", name, BENCHMARKS)))
        print(f"{name} …", file=sys.stderr)
        results.save(BENCHMARKS[name]())
    rows = results.load()
    print(results.table(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
