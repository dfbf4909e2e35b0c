"""Checks that a real container of an image has to pass before its tags move to it."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from flows.catalog.model import Access
from flows.core import fence, outside
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.formatting import megabytes, on_a_line, printable
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.host import containers, tools
from flows.publishing import probe

# Nobody's uid: an image has to work with any.
UID = 65_537
STEADY_SECONDS = 2.0
# Between two looks at whether a container runs: each starts a program, beside an IDE that needs the cores to start.
_PROGRAM_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
MOST_GROWTH = 0.05  # of the image before
MOST_NAMED, MOST_PROBLEMS = 8, 500
MOST_SHOWN = 2_000  # characters of a line of a probe's report
MOST_TOLD = 64 << 20  # bytes that a program in an image may print: it may be anybody's
SHORTEST_SECRET = 8
_PIP_CHECK = (
    "test -e /opt/app-root/pyvenv.cfg || exit 0; "
    "PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) exec /opt/app-root/bin/python -m pip check"
)
_PROBE = Path(probe.__file__)
_PROBE_INSIDE = "/run/refit/probe.py"
# Names of variables whose value is a secret, or belongs to the machine that builds.
_PRIVATE = re.compile(
    r"(?i)(https?|ftp|all|no|npm_config(_https)?)_proxy|(pip|uv)_.*(index|find_links|proxy).*|npm_config_registry|"
    r"(?!.*_file$).*(password|passwd|secret|token|credential|api_?key|private_key).*"
)
_ASSIGNED = re.compile(r"\b(\w+)=[^\s$]")


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, whether it passed, what was seen, how long it took (seconds)."""

    check: str
    passed: bool
    seen: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """The findings in an image; how many bytes each package takes there (`deb/tmux`, `pypi/rich`); their versions."""

    findings: tuple[Finding, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the image may be used."""
        return all(finding.passed for finding in self.findings)

    @property
    def seconds(self) -> float:
        """How long all checks took."""
        return sum(finding.seconds for finding in self.findings)


@dataclass(frozen=True)
class _Files:
    """The report of a probe on files."""

    stale: tuple[str, ...]
    secrets: tuple[str, ...]
    sizes: dict[str, int]
    packages: dict[str, str]


_FILES, _MODULES = TypeAdapter(_Files), TypeAdapter(dict[str, str])
Shape = TypeVar("Shape")


class ChecksFailed(RefitError):
    """An image is not fit to be used."""

    def __init__(self, image: str, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        failed = [finding for finding in findings if not finding.passed]
        super().__init__(
            f"{image} fails the check {', '.join(repr(f.check) for f in failed)}; its tags stay where they are.",
            why="\n".join(f"{finding.check}: {finding.seen}" for finding in failed),
            hint="correct the recipe or its lock, and build again.",
        )


def run(
    image: str,
    content: str,
    access: Access,
    distributions: Sequence[str],
    settings: Settings,
    *,
    vouched: bool = True,
) -> Report:
    """Start an image as a session would, and look at it.

    Args:
        image: `docker://host/repository@sha256:…`.
        content: its content digest; checks that passed once with the same content aren't run again.
        access: how its IDE is reached.
        distributions: packages that people ask for by name, and have to be able to import.
        settings: limits, storage, runtime, and the secrets that may not be inside.
        vouched: an operator's recipe made it. An image of a person's own has no network here, so that its IDE isn't
            asked for its page, and it is told no secret to look for: its own programs would hear it.

    Raises:
        RefitError: the image can't be pulled.
    """
    rules = f"{_PIP_CHECK} {_PRIVATE.pattern} {_PROBE.read_text()}"
    inputs = f"{content} {access.as_label()} {sorted(distributions)} {rules}{'' if vouched else ' unvouched'}"
    note = settings.folder("cache", "checks") / f"{sha256(inputs.encode()).hexdigest()[:32]}.json"
    if note.exists():
        kept = json.loads(note.read_text())
        return Report(tuple(Finding(**finding) for finding in kept["findings"]), kept["sizes"], kept["packages"])
    containers.remove_orphans(settings)
    local = containers.pull(settings, image)
    try:
        report = _look(local, access, distributions, settings, vouched)
    except command.ProgramFailed as error:
        report = Report((Finding("container", False, error.tail),))
    if report.passed:
        write_whole(note, json.dumps(asdict(report)))
    return report


def size(now: int, before: int | None, budget: int | None, sizes: Mapping[str, int], old: Mapping[str, int]) -> Finding:
    """Whether an image has a size that it may have. Pure.

    Args:
        now: its bytes (compressed).
        before: those of the image in whose place it comes; none: it is the first.
        budget: bytes that it may have; none: nobody has said.
        sizes: package → bytes in the image, to name those responsible.
        old: the same in the image before.
    """
    grown = before is not None and now >= before * (1 + MOST_GROWTH)
    if budget is not None and now > budget:
        return Finding(
            "size", False, f"{megabytes(now, 1)}, over its budget of {megabytes(budget, 1)}{_largest(sizes, {})}"
        )
    if before is None or not grown:
        return Finding("size", True, megabytes(now, 1))
    seen = f"{megabytes(now, 1)}, {now / before - 1:.0%} more than the image before{_largest(sizes, old)}"
    # A budget is a person's word on how large an image may be; without one, somebody has to look.
    word = "" if budget is not None else "\nTo allow it, give the profile a `size_budget` in its release."
    return Finding("size", budget is not None, seen + word)


def _largest(sizes: Mapping[str, int], old: Mapping[str, int]) -> str:
    more = {name: bytes_ - old.get(name, 0) for name, bytes_ in sizes.items()}
    first = sorted((-count, name) for name, count in more.items() if count > 0)[:MOST_NAMED]
    return "".join(f"\n  {name} {'+' if old else ''}{megabytes(-count, 1)}" for count, name in first)


def in_config(config: Mapping[str, Any], values: Mapping[str, str]) -> list[str]:
    """Secrets in an image's configuration. Pure.

    Args:
        config: as the OCI image spec has it: `config.Env`, `history`.
        values: its description → the secret itself.
    """
    variables = [variable.partition("=") for variable in config.get("config", {}).get("Env") or ()]
    steps = [str(step.get("created_by", "")) for step in config.get("history") or ()]
    named = [f"environment: {name}" for name, _, value in variables if value and _PRIVATE.fullmatch(name)]
    lines = [
        f"history: {match[1]}" for step in steps for match in _ASSIGNED.finditer(step) if _PRIVATE.fullmatch(match[1])
    ]
    texts = {"environment": "\n".join(value for _, _, value in variables), "history": "\n".join(steps)}
    held = [
        f"{place}: holds {what}" for place, text in texts.items() for what, value in values.items() if value in text
    ]
    return sorted({*named, *lines, *held})


def secret_values(settings: Settings) -> dict[str, str]:
    """Secrets that must not be in any image: setting → value. Too short a word would be found everywhere by chance."""
    urls = {
        "pip_index_url": settings.pip_index_url.get_secret_value(),
        "database_url": settings.database_url,
        "apt_proxy": settings.apt_proxy,
        "npm_registry": settings.npm_registry,
    }
    secrets = {
        "registry_password": settings.registry_password.get_secret_value() or settings.registry_login[1],
        "auth": settings.auth.get_secret_value(),
        "metrics_token": settings.metrics_token.get_secret_value(),
        "apt_proxy": settings.apt_proxy,
        **{f"the password of {name}": unquote(urlsplit(url).password or "") for name, url in urls.items()},
    }
    return {what: value for what, value in secrets.items() if len(value) >= SHORTEST_SECRET}


def _look(image: str, access: Access, distributions: Sequence[str], settings: Settings, vouched: bool) -> Report:
    asks_ide = access.port and vouched
    with _container(image, access, settings, "" if asks_ide else "none") as name:
        first = _answers if asks_ide else _stays_up
        alive = _timed("ide" if asks_ide else "steady", lambda: first(name, access, settings))
        if not alive.passed:
            return Report((alive,))
        inside = (
            _timed("pip", lambda: _pip(name, settings)),
            _timed("imports", lambda: _imports(name, distributions, settings)),
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
        ["python3", "-B", _PROBE_INSIDE, "files"],
        mounts=[containers.Mount(_PROBE, _PROBE_INSIDE)],
        user="0:0",
        capabilities=["dac_read_search"] if vouched else [],
        stdin=json.dumps(values),
        most=MOST_TOLD,
    )
    report = _parsed(done, _FILES)
    config = json.loads(command.run([*tools.podman(settings), "image", "inspect", image], root=True).stdout)[0]
    leaks = [*in_config({"config": config["Config"], "history": config["History"]}, values), *report.secrets]
    seconds = round(time.monotonic() - started, 2)
    findings = (_none_of("stale", report.stale, seconds), _none_of("secrets", leaks))
    return Report((*before, *findings), report.sizes, report.packages)


def _none_of(check: str, wrong: Sequence[str], seconds: float = 0.0) -> Finding:
    more = f"\nand {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    named = "\n".join(on_a_line(each)[:MOST_SHOWN] for each in wrong[:MOST_NAMED])
    return Finding(check, not wrong, named + more if wrong else "none", seconds)


@contextmanager
def _container(image: str, access: Access, settings: Settings, network: str) -> Iterator[str]:
    podman = tools.podman(settings)
    name = f"refit-check-{secrets.token_hex(6)}"
    folder = Path(tempfile.mkdtemp(prefix="refit-check-"))
    token, looks = folder / "token", folder / "probe.py"
    folder.chmod(0o711)
    shutil.copyfile(_PROBE, looks)
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
        *("--volume", f"{looks}:{_PROBE_INSIDE}:ro"),
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


def _timed(check: str, look: Callable[[], tuple[bool, str]]) -> Finding:
    started = time.monotonic()
    passed, seen = look()
    return Finding(check, passed, seen, round(time.monotonic() - started, 2))


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
        call = [*tools.podman(settings), "exec", name, "sh", "-c", _PIP_CHECK]
        done = command.run(call, root=True, limit=120, most=MOST_TOLD)
    except command.ProgramFailed as error:
        return False, error.tail
    return True, printable(done.stdout.strip()[:MOST_SHOWN])


def _imports(name: str, distributions: Sequence[str], settings: Settings) -> tuple[bool, str]:
    inside = ["python3", "-B", _PROBE_INSIDE, "modules"]
    argv = [*tools.podman(settings), "exec", "--interactive", name, *inside]
    limit = probe.IMPORT_SECONDS * (len(distributions) + 1)
    request = json.dumps(list(distributions))
    failures = _parsed(command.run(argv, root=True, stdin=request, limit=limit, most=MOST_TOLD), _MODULES)
    problems = [printable(f"{name}: {problem}")[:MOST_SHOWN] for name, problem in failures.items()]
    return not problems, "\n".join(problems[:MOST_PROBLEMS]) or f"{len(distributions)} packages"


def _parsed(done: command.Completed, kind: TypeAdapter[Shape]) -> Shape:
    """The report that a probe has printed.

    Raises:
        RefitError: a program in the image has printed something else in its place.
    """
    try:
        return kind.validate_json(done.stdout, strict=True)
    except ValidationError:
        raise RefitError(
            "The Python of the image doesn't run the probe of its checks.",
            why=f"It printed {done.stdout[:200]!r}.",
            hint="look for a `python3` in the image that is something else.",
        ) from None


def _running(name: str, settings: Settings) -> bool:
    state = command.run([*tools.podman(settings), "inspect", "--format", "{{.State.Running}}", name], root=True)
    return state.stdout.strip() == "true"


def _last_words(name: str, settings: Settings) -> str:
    logs = command.run([*tools.podman(settings), "logs", "--tail", "15", name], root=True)
    return f"The last lines that it wrote:\n{logs.stdout}{logs.stderr}".strip()
