"""Programs that run beside others in a container of a Pod, with the failures that programs have everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from flows.core.programs.command import FOREIGN_OUTPUT, ProgramFailed
from flows.sessions.kubernetes.cluster import Cluster, ProgramEnded


def output_of(
    cluster: Cluster,
    pod: str,
    container: str,
    argv: Sequence[str],
    stdin: str = "",
    *,
    limit: float,
    most: int = FOREIGN_OUTPUT,
) -> str:
    """Run a program in a container of a Pod; returns its standard output.

    Args:
        cluster: whose Pod.
        pod: its name.
        container: the one of its containers.
        argv: the program and its arguments.
        stdin: its input.
        limit: seconds after which it is ended.
        most: bytes of output after which it is ended.

    Raises:
        ProgramFailed: it ended with another exit code than 0.
        ClusterError: it could not be run, or was ended.
    """
    try:
        with cluster.program(pod, container, argv, stdin.encode()) as program:
            return b"".join(program.output(limit, most)).decode(errors="replace")
    except ProgramEnded as error:
        if error.code < 0:
            raise
        raise ProgramFailed(argv, f"ended with exit code {error.code}", error.why, None, error.code) from error
