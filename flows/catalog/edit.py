"""Changes to a release file as a person would make them: by lines, so that comments and layout stay. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import yaml

from flows.core.documents import compose
from flows.core.errors import RefitError


def with_profile(text: str, profile: Mapping[str, str]) -> str:
    """A release file's text with one more profile, after the last one.

    Raises:
        RefitError: its profiles aren't written one below the other.
    """
    profiles = _value(_root(text), "profiles")
    if not isinstance(profiles, yaml.SequenceNode) or profiles.flow_style or not profiles.value:
        raise RefitError(
            "The profile can't be written into the release file: its profiles aren't a list with one a line.",
            hint="write it there yourself: - " + flow(profile),
        )
    lines = text.splitlines()
    last = _last_line(profiles.value[-1])
    dash = " " * profiles.start_mark.column
    return _joined([*lines[: last + 1], f"{dash}- {flow(profile)}", *lines[last + 1 :]])


def for_release(text: str, name: str, until: date | None) -> str:
    """The first text of a new release's file: the text of another's file, without what is that one's own.

    Args:
        text: the other's file.
        name: the new release.
        until: the last day on which it is supported; none: for ever.
    """
    for key in ("cutoff", "exceptions", "reach"):
        text = without(text, key)
    return supported(re.sub(r"(?m)^(release:\s*)\S+", rf"\g<1>{name}", text), until)


def supported(text: str, until: date | None) -> str:
    """A release file's text with another last day on which it is supported; none: for ever."""
    lines = without(text, "supported_until").splitlines()
    at = next((number for number, line in enumerate(lines, 1) if line.startswith("release:")), 0)
    return _joined([*lines[:at], *([f"supported_until: {until}"] if until else []), *lines[at:]])


def with_reach(text: str, packages: Sequence[str]) -> str:
    """A release file's text that lets these packages move as they like, too, because their versions are dates."""
    reach = _value(_root(text), "reach")
    keys = {name.value for name, _ in reach.value} if isinstance(reach, yaml.MappingNode) else set()
    new = [name for name in packages if name not in keys]
    lines = text.rstrip().splitlines()
    if not new:
        return text
    if isinstance(reach, yaml.MappingNode) and keys and not reach.flow_style:
        at, indent = _last_line(reach) + 1, " " * reach.start_mark.column
        return _joined([*lines[:at], *(f"{indent}{name}: any" for name in new), *lines[at:]])
    comment = "# Their versions are dates: no number of them says what has changed."
    return _joined([*lines, "", comment, "reach:", *(f"  {name}: any" for name in new)])


def without(text: str, key: str) -> str:
    """A YAML mapping's text without one of its keys."""
    node = _root(text)
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    lines = text.splitlines()
    for name, value in pairs:
        if name.value == key:
            del lines[name.start_mark.line : _last_line(value) + 1]
    return _joined(lines)


def _root(text: str) -> yaml.Node | None:
    return compose(text, Path("the release's file"))


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _last_line(node: yaml.Node) -> int:
    """The last line, from 0, on which something of a node stands; YAML's own mark is behind comments that follow."""
    children = node.value if isinstance(node, yaml.CollectionNode) and not node.flow_style else []
    if not children:
        end = node.end_mark
        return int(end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line)
    last = children[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


def flow(profile: Mapping[str, str]) -> str:
    """A profile on one line, as it stands in a release file."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in profile.items()) + "}"


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
