"""A step of a build sees nothing of what its builder knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder, Built
from flows.images.stages import Kind, Stage
from tests.support import prying

VARIABLE = "REFIT_TEST_OF_A_BUILDER"


def test_a_step_reads_no_variable_of_another_process_and_leaves_its_root_by_no_chroot(
    builder: Builder, base: Built, shared: Settings
) -> None:
    files = {"files/prying.py": Path(prying.__file__).read_bytes()}
    look = f"python3 -I -B /mnt/files/files/prying.py /etc/processes {VARIABLE}"
    stage = Stage("prying", Kind.instructions, base.stage, f'RUN {look}; echo "seen: $(cat /etc/processes)"', files)
    with subprocess.Popen(["sleep", "600"], env={VARIABLE: "hush"}) as process:
        try:
            built = builder.build(stage, base)  # it fails where the step sees any
        finally:
            process.kill()
    assert built.log
    (seen,) = (line.split()[1] for line in built.log.read_text().splitlines() if line.startswith("seen: "))
    # By chroot, it is among the processes of its builder, so that it could have found something.
    assert (int(seen) > 0) is (tools.isolation(shared) == "chroot")
