"""The list of all benchmarks, and the command that runs them."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from pathlib import Path

from bench import (
    builders,
    capture,
    door,
    downtime,
    faults,
    fleet,
    freshness,
    grafts,
    homes,
    installer,
    kills,
    matrix,
    nightly,
    patch,
    plan,
    pods,
    real,
    rollback,
    rollout,
    scale,
    snapshots,
    startup,
    supervision,
    tasks,
    throughput,
)
from bench.results import Benchmark, load, measure, ordered, save, table, with_table
from flows.core.errors import UnknownName

README = Path(__file__).parents[1] / "README.md"
BENCHMARKS = {
    "matrix": Benchmark(matrix.run, ("buildah",)),
    "one-leaf": Benchmark(matrix.run_one_leaf, ("buildah",)),
    "builders": Benchmark(builders.run, ("buildah",)),
    "patch": Benchmark(patch.run, ("buildah",)),
    "grafts": Benchmark(grafts.run, ("buildah",)),
    "plan": Benchmark(plan.run),
    "freshness": Benchmark(freshness.run, ("mmdebstrap",)),
    "installer": Benchmark(installer.run, ("buildah", "uv")),
    "nightly": Benchmark(nightly.run),
    "real": Benchmark(real.run, ("buildah",)),
    "rollout": Benchmark(rollout.run),
    "homes": Benchmark(homes.run),
    "snapshots": Benchmark(snapshots.run, ("rsync",)),
    "capture": Benchmark(capture.run, ("podman",)),
    "downtime": Benchmark(downtime.run, ("podman",)),
    "busy": Benchmark(downtime.run_busy, ("podman",)),
    "rollback": Benchmark(rollback.run, ("podman",)),
    "pods": Benchmark(pods.run),
    "kube-scale": Benchmark(scale.run),
    "fleet": Benchmark(fleet.run, ("podman",)),
    "kills": Benchmark(kills.run, ("podman",)),
    "faults": Benchmark(faults.run),
    "throughput": Benchmark(throughput.run),
    "tasks": Benchmark(tasks.run),
    "door": Benchmark(door.run),
    "startup": Benchmark(startup.run, ("podman",)),
    "supervision": Benchmark(supervision.run, ("docker-registry",)),
}


def main(arguments: list[str]) -> int:
    """Run benchmarks, write down each as soon as it is done, and print the table.

    Returns 1 if a goal wasn't reached, 2 if a benchmark failed.
    """
    asked = _parser().parse_args(arguments)
    logging.disable(logging.INFO)
    names = [] if asked.table or asked.readme else asked.names or list(BENCHMARKS)
    failed = [name for name in names if not _is_measured(name)]
    rows = ordered(load(), BENCHMARKS)
    print(table(rows))
    if asked.readme:
        README.write_text(with_table(README.read_text(), table(rows)))
    if failed:
        print(f"Failed, so that the table has their rows of before: {', '.join(failed)}", file=sys.stderr)
        return 2
    return 0 if all(row.reached for row in rows) else 1


def _is_measured(name: str) -> bool:
    """Measure one thing; a benchmark that fails is told of, and keeps nobody from the others."""
    print(f"{name} …", file=sys.stderr)
    try:
        save(measure(name, BENCHMARKS[name]))
    except (Exception, SystemExit):  # a benchmark ends itself by the latter where what it measured went wrong
        traceback.print_exc()
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, BENCHMARKS))
    listed = "\n".join(f"  {name:{width}}  {benchmark.about}" for name, benchmark in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Side-by-side benchmarks. Each writes its rows to bench/results.json.",
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure; none means all", type=_known)
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table of what was measured")
    parser.add_argument("--readme", action="store_true", help="as --table, and put it into the README")
    return parser


def _known(name: str) -> str:
    if name not in BENCHMARKS:
        raise argparse.ArgumentTypeError(str(UnknownName("benchmark", name, BENCHMARKS)))
    return name
