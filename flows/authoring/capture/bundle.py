"""The files of a captured bundle. Pure: path below the bundle's folder → text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from flows.authoring.capture.facts import Capture
from flows.catalog.model import python_version

_LINE = 100  # characters of base64 in a line
_CUSTOM = """\
{% import "snippets/shell.j2" as shell with context %}
"""


def texts(capture: Capture, session: str) -> dict[str, str]:
    """All files of the bundle; `session` is the one that it was captured from."""
    files = {
        "display.txt": f"{capture.name.capitalize()}: {capture.extends}, and what was installed in {session}\n",
        "bundle.yaml": f"extends: {capture.extends}\n",
        f"{capture.python}/Pipfile": pipfile(capture),
    }
    if capture.system:
        files["os/os-packages.txt"] = "".join(f"{name}\n" for name in capture.system)
    if capture.files:
        files["custom/custom.snippet.j2"] = custom(capture.files)
    return files


def pipfile(capture: Capture) -> str:
    """Its Pipfile: canonical names are keys of TOML as they are, and versions hold nothing that ends a string."""
    lines = "".join(_line(name, version, capture.extras.get(name, ())) for name, version in capture.packages.items())
    return f'[packages]\n{lines}\n[requires]\npython_version = "{python_version(capture.python)}"\n'


def _line(name: str, version: str, extras: Iterable[str]) -> str:
    listed = ", ".join(f'"{extra}"' for extra in extras)
    return f'{name} = {{version = "{version}", extras = [{listed}]}}\n' if listed else f'{name} = "{version}"\n'


def custom(files: Mapping[str, bytes]) -> str:
    """Instructions that write files; base64, so that no content is taken for an instruction or a template."""
    return _CUSTOM + "".join(_write(path, content) for path, content in files.items())


def _write(path: str, content: bytes) -> str:
    encoded = b64encode(content).decode("ascii")
    pieces = [encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE)] or [""]
    words = " \\\n        ".join(f"'{piece}'" for piece in pieces)
    folder = PurePosixPath(path).parent
    return (
        f"# {path}, {len(content)} bytes\nRUN {{{{ shell.begin() }}}} \\\n    install -d {folder}; \\\n"
        f"    printf %s {words} | base64 -d >{path}; \\\n    chmod 0644 {path}; \\\n    {{{{ shell.clean() }}}}\n"
    )
