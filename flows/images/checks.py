"""What a real container of an image has to show before its tags move to it."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import httpx

from flows import command, containers, host
from flows.catalog.model import Access
from flows.errors import RefitError
from flows.settings import Settings

# Nobody's uid: an image has to work with any.
UID = 65_537
STEADY_SECONDS = 2.0
_PIP_CHECK = (
    "test -e /opt/app-root/pyvenv.cfg || exit 0; "
    "PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) exec /opt/app-root/bin/python -m pip check"
)


@dataclass(frozen=True)
class Finding:
    """What one check found: its name, whether it passed, what was seen, how long it took (seconds)."""

    check: str
    passed: bool
    seen: str
    seconds: float


class ChecksFailed(RefitError):
    """An image is not fit to be used."""

    def __init__(self, image: str, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        failed = [finding for finding in findings if not finding.passed]
        super().__init__(
            f"{image} fails the check {', '.join(repr(f.check) for f in failed)}; its tags stay where they are.",
            why="\n".join(f"{finding.check}: {finding.seen}" for finding in failed),
            fix="correct the recipe or its lock, and build again.",
        )


def run(image: str, content: str, access: Access, settings: Settings) -> tuple[Finding, ...]:
    """Start an image as a session would, and look at it.

    Args:
        image: `docker://host/repository@sha256:…`.
        content: its content digest: what passed once with the same content isn't done again.
        access: how its IDE is reached.
        settings: limits, storage, runtime.

    Raises:
        RefitError: the image can't be pulled.
    """
    asked = sha256(f"{content} {access.model_dump_json()} {_PIP_CHECK}".encode()).hexdigest()[:32]
    known = settings.folder("cache", "checks") / f"{asked}.json"
    if known.exists():
        return tuple(Finding(**finding) for finding in json.loads(known.read_text()))
    containers.remove_orphans(settings)
    local = containers.pull(settings, image)
    try:
        findings = _look(local, access, settings)
    except command.ProgramFailed as error:
        findings = (Finding("container", False, error.tail, 0.0),)
    if all(finding.passed for finding in findings):
        draft = known.with_suffix(f".{secrets.token_hex(4)}")
        draft.write_text(json.dumps([asdict(finding) for finding in findings]))
        draft.replace(known)
    return findings


def _look(image: str, access: Access, settings: Settings) -> tuple[Finding, ...]:
    with _container(image, access, settings) as name:
        first = _answers if access.port else _stays_up
        alive = _timed("ide" if access.port else "steady", lambda: first(name, access, settings))
        return (alive, _timed("pip", lambda: _pip(name, settings))) if alive.passed else (alive,)


@contextmanager
def _container(image: str, access: Access, settings: Settings) -> Iterator[str]:
    podman = host.podman(settings)
    name = f"refit-check-{secrets.token_hex(6)}"
    folder = Path(tempfile.mkdtemp(prefix="refit-check-"))
    token = folder / "token"
    folder.chmod(0o711)
    # Whoever reads it can run programs in the container, over the port that is published.
    private = ["-m", "0400", "-o", str(UID), "-g", "0"]
    command.run(["install", *private, "/dev/stdin", token], root=True, stdin=secrets.token_urlsafe(32))
    options = [
        *(
            "--detach",
            "--init",
            "--name",
            name,
            "--label",
            f"{containers.LABEL}={containers.creator()}",
            "--pull",
            "never",
        ),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--pids-limit", "2048"),
        *("--user", f"{UID}:0", *host.run_limits(settings), "--tmpfs", "/home/dev:rw,mode=1777"),
        *("--volume", f"{token}:/run/refit/token:ro", "--env", "REFIT_TOKEN_FILE=/run/refit/token"),
        *("--env", f"REFIT_SESSION={name}"),
        *(("--publish", f"127.0.0.1::{access.port}") if access.port else ("--network", "none")),
    ]
    try:
        command.run([*podman, "run", *options, image], root=True, limit=120)
        yield name
    finally:
        command.run([*podman, "rm", "--force", "--ignore", "--time", "0", name], root=True)
        shutil.rmtree(folder)


def _timed(check: str, look: Callable[[], tuple[bool, str]]) -> Finding:
    started = time.monotonic()
    passed, seen = look()
    return Finding(check, passed, seen, round(time.monotonic() - started, 2))


def _answers(name: str, access: Access, settings: Settings) -> tuple[bool, str]:
    published = command.run([*host.podman(settings), "port", name, f"{access.port}/tcp"], root=True).stdout.split()
    if not published:  # it has ended already
        return False, f"its command ended at once.\n{_last_words(name, settings)}"
    url = f"http://{published[0]}{access.health}"
    deadline, seen = time.monotonic() + settings.ready_limit, "nothing"
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while time.monotonic() < deadline and _running(name, settings):
            try:
                answer = client.get(url)
            except httpx.TransportError as error:
                seen = str(error) or type(error).__name__
            else:
                seen = f"{access.health} answers {answer.status_code}"
                if answer.status_code == 200:
                    return True, seen
            time.sleep(0.1)
    return False, f"{seen}, not 200 within {settings.ready_limit:g} s.\n{_last_words(name, settings)}"


def _stays_up(name: str, access: Access, settings: Settings) -> tuple[bool, str]:
    deadline = time.monotonic() + STEADY_SECONDS
    while _running(name, settings):
        if time.monotonic() > deadline:
            return True, f"still runs after {STEADY_SECONDS:g} s"
        time.sleep(0.1)
    return False, f"its command ended at once.\n{_last_words(name, settings)}"


def _pip(name: str, settings: Settings) -> tuple[bool, str]:
    try:
        done = command.run([*host.podman(settings), "exec", name, "sh", "-c", _PIP_CHECK], root=True, limit=120)
    except command.ProgramFailed as error:
        return False, error.tail
    return True, done.stdout.strip()


def _running(name: str, settings: Settings) -> bool:
    state = command.run([*host.podman(settings), "inspect", "--format", "{{.State.Running}}", name], root=True)
    return state.stdout.strip() == "true"


def _last_words(name: str, settings: Settings) -> str:
    said = command.run([*host.podman(settings), "logs", "--tail", "15", name], root=True)
    return f"Its last words:\n{said.stdout}{said.stderr}".strip()
