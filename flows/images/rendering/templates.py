"""The templates of a catalog: read and rendered, whatever stands in them. A catalog is data, and runs nothing here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from flows.core.documents import Mistake, Mistakes, bounds, unreadable
from flows.images.rendering.process import RENDERER, Ended

# Of a catalog, those that have templates.
PARTS = ("base", "bundles", "ides", "snippets")

_numbers = count(1)


@dataclass(frozen=True)
class Facts:
    """Facts about a template that are known without rendering it.

    Attributes:
        names: each place where a variable is named: its name, its line, and `load` or `store`.
        undeclared: the variables that it has from elsewhere.
        imports: the names under which it imports others, with their lines.
        references: the templates that it names.
    """

    names: tuple[tuple[str, int, str], ...]
    undeclared: frozenset[str]
    imports: tuple[tuple[str, int], ...]
    references: tuple[str, ...]


@dataclass(frozen=True)
class Templates:
    """All templates of a catalog: path below its root → text. The result of a rendering is kept."""

    root: Path
    texts: Mapping[str, str]
    _number: int = field(default_factory=lambda: next(_numbers), init=False, compare=False, repr=False)
    _uses: dict[str, list[str] | None] = field(default_factory=dict, init=False, compare=False, repr=False)
    _rendered: dict[tuple[str, bytes], str | Mistakes] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def render(self, name: str, **variables: object) -> str:
        """The text that a template makes of the variables.

        Raises:
            Mistakes: the template, or one that it includes, has a mistake or takes too much; with its file and line.
        """
        text = self._rendered.get(self._key(name, variables))
        if text is None:
            try:
                text = self._made(name, variables)
            except Mistakes as mistakes:
                text = mistakes
            self._rendered[self._key(name, variables)] = text
        if isinstance(text, Mistakes):
            raise Mistakes(text.mistakes)
        return text

    def facts(self, name: str) -> Facts:
        """The facts about a template that are known without rendering it.

        Raises:
            Mistakes: it is none.
        """
        answer = self._asked({"ask": "facts", "name": name})["facts"]
        return Facts(
            names=tuple((str(variable), int(line), str(how)) for variable, line, how in answer["names"]),
            undeclared=frozenset(answer["undeclared"]),
            imports=tuple((str(target), int(line)) for target, line in answer["imports"]),
            references=tuple(other for other, _ in answer["references"] if other is not None),
        )

    def _key(self, name: str, variables: Mapping[str, object]) -> tuple[str, bytes]:
        """The inputs of a text: of the variables those that its template could look at, as far as that is known."""
        uses = self._uses.get(name)
        return name, to_json(variables if uses is None else {key: variables[key] for key in uses if key in variables})

    def _made(self, name: str, variables: Mapping[str, object]) -> str:
        answer = self._asked({"ask": "render", "name": name, "variables": to_jsonable_python(variables)})
        self._uses[name] = answer["uses"]
        return str(answer["text"]).strip() + "\n"

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the process, which may not know this catalog yet, or no more."""
        try:
            answer = RENDERER.ask({**request, "catalog": self._number})
            if "unknown" in answer:
                whole = {"root": str(self.root), "texts": dict(self.texts), "catalog": self._number}
                answer = RENDERER.ask({**request, **whole})
        except Ended as ended:
            raise Mistakes([Mistake(self.root / request["name"], 0, str(ended))]) from None
        if "mistake" in answer:
            file, line, what = answer["mistake"]
            raise Mistakes([Mistake(self.root / str(file), int(line), str(what))])
        return answer


def read_templates(root: Path) -> Templates:
    """All templates of the catalog below `root`.

    Raises:
        Mistakes: those that can't be read.
    """
    RENDERER.start()
    top = str(root.resolve())
    files = [file for part in PARTS for file in sorted((root / part).rglob("*.j2"))]
    texts: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for file in files:
        try:
            texts[file.relative_to(root).as_posix()] = bounds.read_text(file, bounds.TEMPLATE, top)
        except (OSError, UnicodeDecodeError) as error:
            mistakes.append(unreadable(file, error))
    if mistakes:
        raise Mistakes(mistakes)
    return Templates(root, texts)
