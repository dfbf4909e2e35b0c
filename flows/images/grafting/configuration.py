"""The configuration and history that a stage's instructions give on a parent, without a build. Pure.

The result is that of buildah 1.28 with one layer a stage. An instruction whose effect isn't known for sure is
refused: then the stage has to be built.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from flows.images.containerfile import parts

# The oldest date that a wheel can hold. All files of all layers carry it, and all entries of all histories.
TIMESTAMP = 315_532_800
CREATED = datetime.fromtimestamp(TIMESTAMP, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

Config = Mapping[str, Any]
_WITH_OPTIONS = ("COPY", "RUN")
_WRITING = {"COPY", "RUN", "WORKDIR"}
_OPTIONS = re.compile(r"(?:--\w+=\S+\s+)*")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name in capitals, what follows, and the whole as written, with continuations joined."""

    name: str
    rest: str
    written: str

    def apply(self, state: State) -> None:
        """Let it change a configuration; raises as `configured` does."""
        _EFFECTS[self.name](state, self)


def instructions(text: str) -> tuple[Instruction, ...]:
    """The instructions of a stage's text, which has no FROM.

    Raises:
        ValueError: one is not among those whose effect on the configuration is known.
    """
    steps = []
    for line in _logical_lines(text):
        name, _, rest = re.sub(r"[\t\v\f ]+", " ", line, count=1).partition(" ")
        if name.upper() not in _EFFECTS:
            raise ValueError(f"an instruction that can't be recomputed: {line!r}")
        if not rest.strip():
            raise ValueError(f"an instruction that says nothing: {line!r}")
        if rest.lstrip().startswith("--") and name.upper() not in _WITH_OPTIONS:
            raise ValueError(f"buildah takes the beginning of it for options: {line!r}")
        steps.append(Instruction(name.upper(), rest.strip(), line))
    return tuple(steps)


def _logical_lines(text: str) -> Iterator[str]:
    if "\r" in text or re.search(r"^\s*#\s*(escape|syntax)\s*=", text, re.M | re.I):
        raise ValueError("a Containerfile with carriage returns or parser directives can't be recomputed")
    for part in parts(text):
        if not part.is_whole:
            raise ValueError(f"an instruction that does not end: {part.joined!r}")
        if not part.is_aside:
            yield part.joined


def configured(parent: Config, text: str, diff_id: str | None, *, origin: str) -> Config:
    """The configuration of an image that a stage's instructions give on a parent, in buildah's shape.

    Its history has a COPY as it is written, where buildah's has the hash of what was copied.

    Args:
        parent: the parent's configuration.
        text: the stage's instructions, without FROM.
        diff_id: the stage's one layer, uncompressed; none where it has no layer.
        origin: the parent's name, as the history records it.

    Raises:
        ValueError: the effect of an instruction isn't known, or differs between builders.
    """
    steps = instructions(text)
    if not steps:
        raise ValueError("a stage without instructions has no history to record")
    state = State.on(parent.get("config") or {})
    for step in steps:
        step.apply(state)
    history = _history(steps, origin, diff_id)
    diff_ids = [*parent["rootfs"]["diff_ids"], *([diff_id] if diff_id else [])]
    return {
        **parent,
        "created": CREATED,
        "config": state.config(),
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [*(parent.get("history") or ()), *history],
    }


def written(config: Config) -> bytes:
    """A configuration as the very bytes that buildah would write: a graft has the digest that a build would have."""
    inner = {name: _sorted(value) for name, value in _ordered(config["config"], _INNER).items()}
    history = [_ordered(entry, _ENTRY) for entry in config["history"]]
    rootfs = _ordered(config["rootfs"], ("type", "diff_ids"))
    whole = _ordered({**config, "config": inner, "rootfs": rootfs, "history": history}, _OUTER)
    text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
    # Go writes JSON so that it can stand in a page of HTML.
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text).encode()


_OUTER = ("created", "author", "architecture", "variant", "os", "config", "rootfs", "history")
_INNER = ("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal")
_ENTRY = ("created", "created_by", "author", "comment", "empty_layer")


def _ordered(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: document[name] for name in (*names, *sorted(document.keys() - set(names))) if name in document}


def _sorted(value: object) -> object:
    return dict(sorted(value.items())) if isinstance(value, Mapping) else value


def has_layer(text: str) -> bool:
    """Whether a stage's instructions write files, and don't only configure; raises as `instructions` does."""
    return any(step.name in _WRITING for step in instructions(text))


def _history(steps: Sequence[Instruction], origin: str, diff_id: str | None) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = [
        {"created": CREATED, "created_by": _created_by(step), "empty_layer": True} for step in steps
    ]
    entries[-1]["comment"] = f"FROM {origin}"
    if diff_id:
        del entries[-1]["empty_layer"]
    return entries


def _created_by(step: Instruction) -> str:
    return f"/bin/sh -c {step.written[4:] if step.name == 'RUN' else f'#(nop) {step.written}'}"


@dataclass
class State:
    """A configuration while instructions change it; its variables are `inherited` from the image below or its `own`."""

    inner: dict[str, Any]
    inherited: dict[str, str]
    own: dict[str, str] = field(default_factory=dict)
    command_set: bool = False

    @classmethod
    def on(cls, inner: Mapping[str, Any]) -> State:
        """The state right after FROM; raises as `configured` does."""
        if unknown := inner.keys() & {"OnBuild", "Shell", "Healthcheck"}:
            raise ValueError(f"a parent's configuration with {', '.join(sorted(unknown))} can't be recomputed")
        variables = dict(variable.split("=", 1) for variable in inner.get("Env") or ())
        return cls(dict(inner), variables)

    @property
    def variables(self) -> dict[str, str]:
        """Those that a program has; buildah moves what a stage sets to the end."""
        return {name: value for name, value in self.inherited.items() if name not in self.own} | self.own

    def config(self) -> dict[str, Any]:
        """The part below `config` in an image's configuration."""
        env = {"Env": [f"{name}={value}" for name, value in self.variables.items()]} if self.variables else {}
        return {**self.inner, **env}

    def expanded(self, word: str) -> str:
        """A word of an instruction, with the values of variables; raises as `configured` does."""
        return _expanded(word, {**self.inherited, **self.own})


def _env(state: State, step: Instruction) -> None:
    # All variables of one instruction are expanded with the values from before it.
    state.own |= [(state.expanded(name), state.expanded(value)) for name, value in _pairs(step)]


def _label(state: State, step: Instruction) -> None:
    labels = {state.expanded(name): state.expanded(value) for name, value in _pairs(step)}
    state.inner["Labels"] = {**(state.inner.get("Labels") or {}), **labels}


def _workdir(state: State, step: Instruction) -> None:
    folder, current = _one(state, step), state.inner.get("WorkingDir", "")
    relative = not folder.startswith("/")
    state.inner["WorkingDir"] = posixpath.normpath(posixpath.join("/", current, folder)) if relative else folder


def _user(state: State, step: Instruction) -> None:
    state.inner["User"] = _one(state, step)


def _one(state: State, step: Instruction) -> str:
    word = state.expanded(step.rest)
    if not word:
        raise ValueError(f"nothing is left of it after expansion: {step.written!r}")
    return word


def _expose(state: State, step: Instruction) -> None:
    before = state.inner.get("ExposedPorts") or {}
    numbers, ports = {name.partition("/")[0] for name in before}, dict(before)
    for word in (state.expanded(part) for part in step.rest.split()):
        port = re.fullmatch(r"(\d+)(?:/(tcp|udp))?", word, re.ASCII)
        if not port:
            raise ValueError(f"a port that can't be recomputed: {word!r}")
        if port[1] not in numbers:
            ports[f"{port[1]}/{port[2] or 'tcp'}"] = {}
    state.inner["ExposedPorts"] = ports


def _cmd(state: State, step: Instruction) -> None:
    state.inner["Cmd"], state.command_set = _called(step), True


def _entrypoint(state: State, step: Instruction) -> None:
    state.inner["Entrypoint"] = _called(step)
    if not state.command_set:  # the parent's command was for the parent's entry point
        state.inner.pop("Cmd", None)


def copied(step: Instruction) -> tuple[list[tuple[str, str]], list[str]]:
    """Options and words of a COPY, as they are written; the last word is the target.

    Raises:
        ValueError: it is none whose effect is known.
    """
    options = "".join(_OPTIONS.findall(step.rest)[:1])
    rest = step.rest.removeprefix(options)
    words = _list(Instruction(step.name, rest, step.written)) if rest.startswith("[") else rest.split()
    if len(words) < 2 or rest.startswith("--"):
        raise ValueError(f"a COPY that can't be recomputed: {step.written!r}")
    pairs = (option.removeprefix("--").partition("=") for option in options.split())
    return [(name, value) for name, _, value in pairs], words


def _copy(_: State, step: Instruction) -> None:
    copied(step)


def _run(_: State, step: Instruction) -> None:
    if step.rest.startswith("["):
        _list(step)


_EFFECTS: Mapping[str, Callable[[State, Instruction], None]] = {
    "ENV": _env,
    "LABEL": _label,
    "WORKDIR": _workdir,
    "USER": _user,
    "EXPOSE": _expose,
    "CMD": _cmd,
    "ENTRYPOINT": _entrypoint,
    "COPY": _copy,
    "RUN": _run,
}


def _called(step: Instruction) -> list[str]:
    return _list(step) if step.rest.startswith("[") else ["/bin/sh", "-c", step.rest]


def _list(step: Instruction) -> list[str]:
    """buildah takes a list that isn't quite JSON for shell text; nobody who wrote a bracket meant that."""
    try:
        words = json.loads(step.rest)
    except ValueError:
        words = None
    if not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"this is no list of words in JSON: {step.rest!r}")
    return list(words)


_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+""")
_VARIABLE = r"""
    \$(?P<name>[^\W\d]\w*)
    | \$\{(?P<braced>[^\W\d]\w*)(?::(?P<how>[-+])(?P<word>[^{}'"\\]*))?\}
    | (?P<dollar>\$)(?![\w{])
"""
_QUOTED = re.compile(rf"""\\(?P<escaped>["$\\]) | {_VARIABLE} | (?P<plain>\\|[^"$\\]+)""", re.X)
_BARE = re.compile(
    rf"""
    '(?P<single>[^']*)' | "(?P<double>(?:\\.|[^"\\])*)" | \\(?P<escaped>.) | {_VARIABLE} | (?P<plain>[^'"$\\]+)
    """,
    re.X,
)


def _pairs(step: Instruction) -> list[tuple[str, str]]:
    """Names and values of ENV and LABEL, as they are written: `a=1 b="2 3"`, or the old form `a 1`."""
    words = _WORD.findall(step.rest)
    if re.sub(r"\s", "", "".join(words)) != re.sub(r"\s", "", step.rest):
        raise ValueError(f"quotes that do not match: {step.written!r}")
    if "=" not in words[0]:
        name, _, value = re.sub(r"\s+", " ", step.rest, count=1).partition(" ")
        pairs = [(name, value)] if value else []
    else:
        pairs = [(name, value) for word in words for name, equals, value in [word.partition("=")] if equals]
    whole = len(pairs) == (len(words) if "=" in words[0] else 1)
    if not whole or not all(name for name, _ in pairs):
        raise ValueError(f"names and values that can't be told apart: {step.written!r}")
    return pairs


def _expanded(word: str, variables: Mapping[str, str], pattern: re.Pattern[str] = _BARE) -> str:
    """A word without its quotes, and with the values of variables, as builders of images do it."""
    parts, at = [], 0
    while at < len(word):
        match = pattern.match(word, at)
        if not match:
            raise ValueError(f"an expansion that can't be recomputed: {word!r}")
        parts.append(_part(match.groupdict(), variables))
        at = match.end()
    return "".join(parts)


def _part(parts: Mapping[str, str | None], variables: Mapping[str, str]) -> str:
    if (double := parts.get("double")) is not None:
        return _expanded(double, variables, _QUOTED)
    for plain in ("single", "escaped", "plain", "dollar"):
        if (text := parts.get(plain)) is not None:
            return text
    value = variables.get(parts["name"] or parts["braced"] or "", "")
    if parts["how"] and (parts["how"] == "+") == bool(value):
        return _expanded(parts["word"] or "", variables)
    return value


def has_no_programs(text: str) -> bool:
    """Whether a stage only copies files and configures, all of it in ways that can be done again without a build."""
    try:
        configured({"rootfs": {"diff_ids": []}}, text, None, origin="")
        return all(step.name != "RUN" for step in instructions(text))
    except ValueError:  # what buildah makes of it isn't known for sure
        return False
