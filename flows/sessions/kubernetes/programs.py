"""Programs that run beside others in a container of a Pod, with the failures that programs have everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from websockets.exceptions import WebSocketException

from flows.core.programs.command import FOREIGN_OUTPUT, ProgramFailed
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ProgramEnded
from flows.sessions.kubernetes.refusals import no_answer


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
        cluster: the cluster of the Pod.
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


@contextmanager
def talk(
    cluster: Cluster, pod: str, container: str, argv: Sequence[str], limit: float
) -> Iterator[Callable[[str], str]]:
    """Let a program in a container of a Pod answer lines with lines, `limit` seconds at most.

    Raises:
        ClusterError: it could not be run, or ends without an answer.
    """
    with cluster.program(pod, container, argv, None) as program:
        lines = _lines(program.output(limit, 4 * FOREIGN_OUTPUT))

        def ask(line: str) -> str:
            try:
                program.write(f"{line}\n".encode())
                answer = next(lines, None)
            except (WebSocketException, OSError) as error:  # whoever asks goes on in another way
                raise no_answer("get pods/exec", error) from None
            if answer is None:
                raise ClusterError(f"{argv[0]} ended without an answer.")
            return answer

        yield ask


def _lines(parts: Iterator[bytes]) -> Iterator[str]:
    """Whole lines, with their ends."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from (f"{line.decode(errors='replace')}\n" for line in whole)
