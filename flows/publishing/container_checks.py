"""Looks at images in containers of this machine, for their checks."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from flows.catalog.model import Access
from flows.core import fence, outside
from flows.core.formatting import printable
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.host import containers, tools
from flows.publishing import probe
from flows.publishing.checks import (
    FILES,
    MOST_SHOWN,
    MOST_TOLD,
    PIP_CHECK,
    PROBE,
    UID,
    Finding,
    Report,
    imported,
    in_config,
    no_secrets,
    none_of,
    parsed,
    secret_values,
    timed,
)

STEADY_SECONDS = 2.0
# Between two looks at whether a container runs: each starts a program, beside an IDE that needs the cores to start.
_PROGRAM_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
PROBE_INSIDE = "/run/refit/probe.py"
_LEFT_OUT = "Refit's own secrets: not searched for, as programs of an image that nobody vouches for aren't told them"


class ContainerLook:
    """Implements `checks.Look`."""

    way = ""

    def __call__(
        self, image: str, access: Access, distributions: Sequence[str], settings: Settings, vouched: bool
    ) -> Report:
        """The findings in an image that Podman of this machine runs.

        Raises:
            ProgramFailed: it can't be pulled or started.
        """
        containers.remove_orphans(settings)
        return _look(containers.pull(settings, image), access, distributions, settings, vouched)


def _look(image: str, access: Access, distributions: Sequence[str], settings: Settings, vouched: bool) -> Report:
    asks_ide = access.port and vouched
    with _container(image, access, settings, "" if asks_ide else "none") as name:
        first = _answers if asks_ide else _stays_up
        alive = timed("ide" if asks_ide else "steady", lambda: first(name, access, settings))
        if not alive.passed:
            return Report((alive,))
        inside = (
            timed("pip", lambda: _pip(name, settings)),
            timed("imports", lambda: _imports(name, distributions, settings)),
        )
    return _look_at_files(image, (alive, *inside), settings, vouched)


def _look_at_files(image: str, before: tuple[Finding, ...], settings: Settings, vouched: bool) -> Report:
    """In a container that does nothing else, because one that was used has files that aren't the image's.

    A program of an image that nobody vouches for gets no capability: with `dac_read_search` it could open files of this
    machine by their handles. It reads what root owns, which is nearly all.
    """
    started, values = time.monotonic(), secret_values(settings) if vouched else {}
    done = containers.run_once(
        settings,
        image,
        ["python3", "-B", PROBE_INSIDE, "files"],
        mounts=[containers.Mount(PROBE, PROBE_INSIDE)],
        user="0:0",
        capabilities=["dac_read_search"] if vouched else [],
        stdin=json.dumps(values),
        most=MOST_TOLD,
    )
    report = parsed(done.stdout, FILES)
    config = json.loads(command.run([*tools.podman(settings), "image", "inspect", image], root=True).stdout)[0]
    leaks = [*in_config({"config": config["Config"], "history": config["History"]}, values), *report.secrets]
    seconds = round(time.monotonic() - started, 2)
    findings = (none_of("stale", report.stale, seconds), no_secrets(leaks, report.unread, "" if vouched else _LEFT_OUT))
    return Report((*before, *findings), report.sizes, report.packages)


@contextmanager
def _container(image: str, access: Access, settings: Settings, network: str) -> Iterator[str]:
    podman = tools.podman(settings)
    name = f"refit-check-{secrets.token_hex(6)}"
    folder = Path(tempfile.mkdtemp(prefix="refit-check-"))
    token, looks = folder / "token", folder / "probe.py"
    folder.chmod(0o711)
    shutil.copyfile(PROBE, looks)
    looks.chmod(0o444)
    # Everybody who reads it can run programs in the container, over the port that is published.
    private = ["-m", "0400", "-o", str(UID), "-g", "0"]
    command.run(["install", *private, "/dev/stdin", token], root=True, stdin=secrets.token_urlsafe(32))
    options = [
        *("--detach", "--init", "--name", name, "--pull", "never"),
        *("--label", f"{containers.LABEL}={containers.creator()}"),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--pids-limit", "2048"),
        *([] if access.user_namespaces else tools.call_filter(settings)),
        *("--user", f"{UID}:0", *tools.run_limits(settings), "--tmpfs", "/home/dev:rw,mode=1777"),
        *("--volume", f"{looks}:{PROBE_INSIDE}:ro"),
        *("--volume", f"{token}:/run/refit/token:ro", "--env", "REFIT_TOKEN_FILE=/run/refit/token"),
        *("--env", f"REFIT_SESSION={name}"),
        *(("--network", network) if network else ("--publish", f"127.0.0.1::{access.port}")),
    ]
    try:
        command.run([*podman, "run", *options, image], root=True, limit=120)
        yield name
    finally:
        with fence.lifted():  # its name is nobody else's
            command.run([*podman, "rm", "--force", "--ignore", "--time", "0", name], root=True)
        shutil.rmtree(folder)


def _code(client: httpx.Client, url: str) -> int:
    """The status of an answer, without reading its content, which may have no end."""
    with outside.within(_ANSWER_SECONDS), client.stream("GET", url) as answer:
        return answer.status_code


def _answers(name: str, access: Access, settings: Settings) -> tuple[bool, str]:
    published = command.run([*tools.podman(settings), "port", name, f"{access.port}/tcp"], root=True).stdout.split()
    if not published:  # it has ended already
        return False, f"its command ended at once.\n{_last_words(name, settings)}"
    url = f"http://{published[0]}{access.health}"
    page = f"http://{published[0]}{access.page.replace('{token}', '')}"
    limit, seen, ready = settings.ready_timeout_seconds * access.patience, "nothing", False
    looked_at = time.monotonic()
    with httpx.Client(trust_env=False, timeout=_ANSWER_SECONDS, verify=outside.NOBODY) as client:
        outside.keep_deadlines(client)

        def is_over() -> bool:
            nonlocal seen, ready, looked_at
            try:
                code = _code(client, url)
            except httpx.TransportError as error:
                seen = str(error) or type(error).__name__
            else:
                seen, ready = f"{access.health} answers {code}", code == httpx.codes.OK
            if ready or time.monotonic() - looked_at < _PROGRAM_SECONDS:
                return ready
            looked_at = time.monotonic()
            return not _running(name, settings)

        wait_until(is_over, seconds=limit)
        if ready:
            open_to_all = "{token}" in access.page and httpx.codes.is_success(_code(client, page))
            return not open_to_all, f"{access.page} opens without its token" if open_to_all else seen
    return False, f"{seen}, not 200 within {limit:g} s.\n{_last_words(name, settings)}"


def _stays_up(name: str, access: Access, settings: Settings) -> tuple[bool, str]:
    if not wait_until(lambda: not _running(name, settings), seconds=STEADY_SECONDS, pause=_PROGRAM_SECONDS):
        return True, f"still runs after {STEADY_SECONDS:g} s"
    return False, f"its command ended at once.\n{_last_words(name, settings)}"


def _pip(name: str, settings: Settings) -> tuple[bool, str]:
    try:
        call = [*tools.podman(settings), "exec", name, "sh", "-c", PIP_CHECK]
        done = command.run(call, root=True, limit=120, most=MOST_TOLD)
    except command.ProgramFailed as error:
        return False, error.tail
    return True, printable(done.stdout.strip()[:MOST_SHOWN])


def _imports(name: str, distributions: Sequence[str], settings: Settings) -> tuple[bool, str]:
    inside = ["python3", "-B", PROBE_INSIDE, "modules"]
    argv = [*tools.podman(settings), "exec", "--interactive", name, *inside]
    limit = probe.IMPORT_SECONDS * (len(distributions) + 1)
    request = json.dumps(list(distributions))
    told = command.run(argv, root=True, stdin=request, limit=limit, most=MOST_TOLD).stdout
    return imported(told, distributions)


def _running(name: str, settings: Settings) -> bool:
    state = command.run([*tools.podman(settings), "inspect", "--format", "{{.State.Running}}", name], root=True)
    return state.stdout.strip() == "true"


def _last_words(name: str, settings: Settings) -> str:
    logs = command.run([*tools.podman(settings), "logs", "--tail", "15", name], root=True)
    return f"The last lines that it wrote:\n{logs.stdout}{logs.stderr}".strip()
