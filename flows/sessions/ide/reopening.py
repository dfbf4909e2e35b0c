"""Programs that a stop ends in a session, told to its person, and opened again where the IDE can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flows.core.errors import RefitError
from flows.sessions.activity.evidence import Evidence
from flows.sessions.activity.visit import Programs
from flows.sessions.ide import opened
from flows.sessions.ide.jupyter import Jupyter
from flows.sessions.model import Session

_SCRIPT = Path(opened.__file__)
_LIMIT = 15.0
# The content of a session is its owner's business, and they may put there what they like.
_MOST = 100


@dataclass(frozen=True)
class Document:
    """A document of Jupyter's with a kernel.

    Attributes:
        path: below the home.
        name: of the document.
        type: `notebook`, `console` or another.
        kernel: the kernel's name.
        kernel_id: the kernel's id; empty: it was written down before ids were.
    """

    path: str
    name: str
    type: str
    kernel: str
    kernel_id: str = ""

    def __str__(self) -> str:
        return f"the kernel {self.kernel} of {self.path}"


@dataclass(frozen=True)
class Opened:
    """The open parts of a session: documents and terminals of its IDE, and other programs, in words."""

    documents: tuple[Document, ...] = ()
    terminals: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def to_json(self) -> str:
        """All of it, in one line."""
        return _AS_JSON.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Opened:
        """Reads the text of `to_json`; empty, where the text is something else."""
        try:
            return _AS_JSON.validate_json(text)
        except ValidationError:
            return cls()


_AS_JSON = TypeAdapter(Opened)


def look(engine: Programs, session: Session, running: Sequence[Evidence]) -> Opened:
    """The open parts of a session that runs, beside the programs and kernels that are known to run.

    Raises:
        RefitError: its IDE doesn't say.
    """
    if session.access.protocol != "jupyter":
        return Opened(programs=tuple(item.text for item in running))
    call = ["python3", "-I", "-", str(session.access.port)]
    output = engine.execute(session.container, call, stdin=_SCRIPT.read_text(encoding="utf-8"), limit=_LIMIT)
    item = Opened.from_json(output)
    documents = item.documents[:_MOST]
    named = {document.kernel_id for document in documents}
    programs = tuple(each.text for each in running if not each.kernel or each.kernel not in named)
    return Opened(documents, item.terminals[:_MOST], programs)


def reopen(jupyter: Jupyter, ended: Opened) -> Opened:
    """Give documents a fresh kernel and terminals a fresh shell, by the same names; those that could be.

    Pages that are still open find both again; documents that are open already stay as they are.
    """
    documents, terminals = [], []
    for document in ended.documents:
        try:
            jupyter.open_document(document.path, document.name, document.type, document.kernel)
        except RefitError:  # the new image may not have that kernel
            continue
        documents.append(document)
    for name in ended.terminals:
        try:
            jupyter.open_terminal(name)
        except RefitError:
            continue
        terminals.append(name)
    return Opened(tuple(documents), tuple(terminals))


def summary(ended: Opened, again: Opened) -> str:
    """The programs that ended and those that were opened again, in words; empty: none ended. Pure."""
    every = [*map(str, ended.documents), *(f"the terminal {name}" for name in ended.terminals), *ended.programs]
    fresh = [*map(str, again.documents), *(f"the terminal {name}" for name in again.terminals)]
    lines = [f"Ended: {'; '.join(every)}."] if every else []
    lines += [f"Opened again, and empty: {'; '.join(fresh)}."] if fresh else []
    return "\n".join("".join(filter(str.isprintable, line)) for line in lines)
