"""The first files of a new bundle, IDE or base: correct, small, and to be changed. Pure: path → text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flows.catalog import tag
from flows.catalog.lineage import NUMBERED
from flows.catalog.model import Catalog, python_version
from flows.core.documents import text_of
from flows.core.errors import RefitError

_SOURCE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true
"""
_IDE = """\
COPY --chmod=0755 files/start-{name} /usr/local/bin/start-{name}
ENV {upper}_PORT={{{{ port }}}}
EXPOSE {{{{ port }}}}
USER 1001:0
CMD ["start-{name}"]
"""
_START = '''\
#!/opt/app-root/bin/python3
"""Serves a page for whatever user this container runs as, to be replaced by an IDE. The token comes from a file."""

import hmac
import os
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PREFIX = os.environ.get("NB_PREFIX", "").rstrip("/")
FILE = os.environ.get("REFIT_TOKEN_FILE")
TOKEN = Path(FILE).read_text().strip() if FILE else secrets.token_hex()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        token = parse_qs(url.query).get("token", [""])[0]
        if url.path == f"{{PREFIX}}/health":
            self.answer(200, "ready")
        elif hmac.compare_digest(token.encode(), TOKEN.encode()):
            self.answer(200, f"Here is {{Path.home()}}.")
        else:
            self.answer(403, "The token is missing or wrong.")

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Says nothing: the token would be in it."""


ThreadingHTTPServer(("0.0.0.0", int(os.environ["{upper}_PORT"])), Handler).serve_forever()
'''
_ACCESS = """\
# Without an API that tells of its user (`protocol`), any process that works counts as somebody's work.
access:
  port: 8080
  health: /health
  page: /?token={token}
"""


def bundle(name: str, catalog: Catalog) -> dict[str, str]:
    """A bundle with a section for each IDE that has packages, for every Python that others are for (none: that is)."""
    folder = f"bundles/{next_number(catalog.root / 'bundles')}-{name}"
    there = dict.fromkeys(python for base in catalog.bases.values() for python in base.config.pythons)
    used = {python for neighbour in catalog.bundles.values() for python in neighbour.pythons}
    pythons = [python for python in there if python in used] or there
    pipfiles = {f"{folder}/{python}/Pipfile": _pipfile(python, catalog) for python in pythons}
    return {f"{folder}/display.txt": f"{name.capitalize()}\n", **pipfiles}


def _pipfile(python: str, catalog: Catalog) -> str:
    """It asks for the packages of IDEs that its neighbours ask for: these work with this Python."""
    sections = [_SOURCE, "[packages]\n"]
    for category in sorted({ide.config.category for ide in catalog.ides.values()} - {""}):
        if lines := _section(category, python, catalog):
            sections.append(f"[{category}]\n" + "".join(f"{line}\n" for line in lines))
    return "\n".join([*sections, f'[requires]\npython_version = "{python_version(python)}"\n'])


def _section(category: str, python: str, catalog: Catalog) -> list[str]:
    """The lines of a section in the first bundle that has it for this Python."""
    for neighbour in catalog.bundles.values():
        if python in neighbour.pythons:
            lines = text_of(neighbour.pythons[python] / "Pipfile").splitlines()
            if f"[{category}]" in lines:
                below = lines[lines.index(f"[{category}]") + 1 :]
                end = next((number for number, line in enumerate(below) if line.startswith("[")), len(below))
                return [line for line in below[:end] if line.strip()]
    return []


def ide(name: str, catalog: Catalog) -> dict[str, str]:
    """An IDE that serves the home, to be replaced by one that does more."""
    folder = f"ides/{next_number(catalog.root / 'ides')}-{name}"
    return {
        f"{folder}/display.txt": f"{name.capitalize()}\n",
        f"{folder}/ide.yaml": _ACCESS,
        f"{folder}/{name}.snippet.j2": _IDE.format(name=name, upper=name.upper()),
        f"{folder}/files/start-{name}": _START.format(upper=name.upper()),
    }


def base(name: str, catalog: Catalog) -> dict[str, str]:
    """A base of Debian packages, like the newest that there is."""
    like = [base for base in catalog.bases.values() if base.config.family == "deb"]
    if not like:
        raise RefitError(
            "The catalog has no base of Debian packages that a new one could be like.",
            hint="add base/NAME/base.yaml by hand; docs/catalog.md says what stands in it.",
        )
    texts = {file.name: text_of(file) for file in like[-1].folder.iterdir() if file.is_file()}
    return {f"base/{name}/{file}": text for file, text in {**texts, "display.txt": f"{name.capitalize()}\n"}.items()}


KINDS: Mapping[str, Callable[[str, Catalog], dict[str, str]]] = {"bundle": bundle, "ide": ide, "base": base}


def skeleton(kind: str, name: str, catalog: Catalog) -> dict[str, str]:
    """The files of a new recipe: path below the catalog → text.

    Raises:
        RefitError: there is one of that name, or it can't be a name.
    """
    if not tag.is_name(name):
        raise RefitError(
            f"{name!r} can't be the name of a recipe.", hint="take small letters and digits alone, 30 at most."
        )
    names: Iterable[str] = {"bundle": catalog.bundles, "ide": catalog.ides, "base": catalog.bases}[kind]
    if name in names:
        raise RefitError(f"There is a {kind} {name!r} already.", hint="take another name.")
    return KINDS[kind](name, catalog)


def next_number(folder: Path) -> int:
    """The number after the last one of the recipes in a folder."""
    numbers = [int(match[1]) for path in folder.iterdir() if (match := NUMBERED.fullmatch(path.name))]
    return max(numbers, default=0) + 1
