"""Checks that a real container of an image has to pass before its tags move to it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from flows.catalog.model import Access
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.formatting import megabytes, on_a_line, printable
from flows.core.programs import command
from flows.core.settings import Settings
from flows.publishing import probe

# Nobody's uid: an image has to work with any.
UID = 65_537
MOST_GROWTH = 0.05  # of the image before
MOST_NAMED, MOST_PROBLEMS = 8, 500
MOST_PATH = 200  # characters of a path that was not searched
MOST_SHOWN = 2_000  # characters of a line of a probe's report
MOST_TOLD = 64 << 20  # bytes that a program in an image may print: it may be anybody's
SHORTEST_SECRET = 8
PIP_CHECK = (
    "test -e /opt/app-root/pyvenv.cfg || exit 0; "
    "PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) exec /opt/app-root/bin/python -m pip check"
)
PROBE = Path(probe.__file__)
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
class Files:
    """The report of a probe on files."""

    stale: tuple[str, ...]
    secrets: tuple[str, ...]
    unread: tuple[str, ...]
    sizes: dict[str, int]
    packages: dict[str, str]


FILES, MODULES = TypeAdapter(Files), TypeAdapter(dict[str, str])
Shape = TypeVar("Shape")


class Look(Protocol):
    """A look at an image that runs as in a session."""

    way: str
    """The place of the look: what passed in another place is looked at again."""

    def __call__(
        self, image: str, access: Access, distributions: Sequence[str], settings: Settings, vouched: bool
    ) -> Report:
        """The findings in an image, with the arguments of `run`.

        Raises:
            ProgramFailed: it doesn't start, or a program in it fails that is no check.
        """


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
    look: Look,
    vouched: bool = True,
) -> Report:
    """Start an image as a session would, and look at it.

    Args:
        image: `docker://host/repository@sha256:…`.
        content: its content digest; checks that passed once with the same content aren't run again.
        access: how its IDE is reached.
        distributions: packages that people ask for by name, and have to be able to import.
        settings: limits, storage, runtime, and the secrets that may not be inside.
        look: starts it, and looks.
        vouched: an operator's recipe made it. An image of a person's own has no network here, so that its IDE isn't
            asked for its page, and it is told no secret to look for: its own programs would hear it.

    Raises:
        RefitError: the image can't be pulled.
    """
    rules = f"{PIP_CHECK} {_PRIVATE.pattern} {PROBE.read_text()}"
    way = f"{'' if vouched else ' unvouched'}{look.way}"
    inputs = f"{content} {access.as_label()} {sorted(distributions)} {rules}{way}"
    note = settings.folder("cache", "checks") / f"{sha256(inputs.encode()).hexdigest()[:32]}.json"
    if note.exists():
        kept = json.loads(note.read_text())
        return Report(tuple(Finding(**finding) for finding in kept["findings"]), kept["sizes"], kept["packages"])
    try:
        report = look(image, access, distributions, settings, vouched)
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


def none_of(check: str, wrong: Sequence[str], seconds: float = 0.0) -> Finding:
    """The finding of a check that nothing is wrong, with the first of what is."""
    more = f"\nand {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    named = "\n".join(on_a_line(each)[:MOST_SHOWN] for each in wrong[:MOST_NAMED])
    return Finding(check, not wrong, named + more if wrong else "none", seconds)


def no_secrets(leaks: Sequence[str], unread: Sequence[str], left_out: str = "") -> Finding:
    """The finding that there are no secrets, with what was not searched.

    Args:
        leaks: the secrets that there are.
        unread: files and folders that the look may not read.
        left_out: a sentence on that which was not searched either.
    """
    finding = none_of("secrets", leaks)
    more = ", …" if len(unread) > MOST_NAMED else ""
    named = ", ".join(on_a_line(each)[:MOST_PATH] for each in sorted(unread)[:MOST_NAMED])
    closed = f"not searched, as the check may not read them ({len(unread)}): {named}{more}"
    lines = [finding.seen, *([closed] if unread else []), *([left_out] if left_out else [])]
    return replace(finding, seen="\n".join(lines))


def timed(check: str, look: Callable[[], tuple[bool, str]]) -> Finding:
    """The finding of a check, with how long it took."""
    started = time.monotonic()
    passed, seen = look()
    return Finding(check, passed, seen, round(time.monotonic() - started, 2))


def imported(told: str, distributions: Sequence[str]) -> tuple[bool, str]:
    """Whether all of these packages can be imported, by the probe's report on them, and what can't."""
    problems = [printable(f"{name}: {problem}")[:MOST_SHOWN] for name, problem in parsed(told, MODULES).items()]
    return not problems, "\n".join(problems[:MOST_PROBLEMS]) or f"{len(distributions)} packages"


def parsed(told: str, kind: TypeAdapter[Shape]) -> Shape:
    """The report that a probe has printed.

    Raises:
        RefitError: a program in the image has printed something else in its place.
    """
    try:
        return kind.validate_json(told, strict=True)
    except ValidationError:
        raise RefitError(
            "The Python of the image doesn't run the probe of its checks.",
            why=f"It printed {told[:200]!r}.",
            hint="look for a `python3` in the image that is something else.",
        ) from None
