"""The process in which templates are parsed and rendered: their author could break out of a sandbox of Python's.

It is run as a program, with nothing of Refit in it: requests come on its input, answers go to its output, each as four
bytes that say how long it is, and JSON. Before it reads the first one it gives up its rights: it can open no file and
no connection, start no program, and is nobody where it was root. Each request may take so much processor time, and the
process so much memory.
"""

from __future__ import annotations

import ctypes
import json
import linecache  # noqa: F401 - nothing can be imported later, and these are imported where they are used
import os
import pprint  # noqa: F401
import resource
import signal
import struct
import sys
import traceback
import unicodedata  # noqa: F401
from collections import OrderedDict
from types import FrameType
from typing import Any, BinaryIO

import jinja2.debug
from jinja2 import FunctionLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError, meta, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2.0  # of processor time, for each request
MEMORY = 512 << 20  # bytes, for the process
OUTPUT = 1_000_000  # characters that a template may make
POWER = 1_000  # the largest exponent
CATALOGS = 8  # that are remembered

_NOBODY = 65534
_NO_NEW_PRIVILEGES = 38  # prctl


class TooMuch(BaseException):
    """A template has reached a limit; with file and line. No `Exception`: Jinja catches these in some places."""

    def __init__(self, what: str, place: tuple[str, int]) -> None:
        self.what, self.place = what, place
        super().__init__(what)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, without what makes another text each time."""

    intercepted_binops = frozenset({"**"})

    def __init__(self, root: str, texts: dict[str, str]) -> None:
        super().__init__(
            loader=FunctionLoader(
                lambda name: (texts[name], os.path.join(root, name), None) if name in texts else None  # noqa: PTH118
            ),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            cache_size=-1,
        )
        self.root, self.texts = root, texts
        self.facts: dict[str, dict[str, Any]] = {}
        del self.globals["lipsum"], self.filters["random"]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A power, unless it is one that takes long."""
        if abs(left) > POWER or abs(right) > POWER:
            raise OverflowError(f"in a power, no number may be larger than {POWER}")
        return super().call_binop(context, operator, left, right)

    def file(self, name: str) -> str:
        """Where a template lies."""
        return os.path.join(self.root, name)  # noqa: PTH118


def main() -> None:
    """Answer requests until there are no more."""
    _warm_up()
    _give_up_rights()
    catalogs: OrderedDict[int, Sandbox] = OrderedDict()
    while (request := _read(sys.stdin.buffer)) is not None:
        try:
            _begin()
            answer = _answer(request, catalogs)
        except TooMuch as error:
            file, line = error.place
            answer = {"mistake": (file or request["name"], line, error.what)}
        except MemoryError:
            answer = {"mistake": (request["name"], 0, _OUT_OF_MEMORY)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        content = json.dumps(answer).encode()
        sys.stdout.buffer.write(struct.pack(">I", len(content)) + content)
        sys.stdout.buffer.flush()


_TOO_LONG = f"this took more than {SECONDS:g} s of processor time"
_OUT_OF_MEMORY = f"this took more than {MEMORY >> 20} MB of memory"
_TOO_DEEP = "this is too deep: it calls or includes itself again and again"


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(4)
    return json.loads(stream.read(struct.unpack(">I", head)[0])) if len(head) == 4 else None


def _warm_up() -> None:
    """Import what is imported where it is needed."""
    sandbox = Sandbox("", {"x": "{{ 1 | pprint }}{{ '\\N{DASH}' }}{% for x in 1 %}{% endfor %}"})
    for name in ("x", "y"):
        try:
            sandbox.get_template(name).render()
        except Exception as error:
            _mistake(sandbox, name, error)


def _give_up_rights() -> None:
    """Become a process that can do nothing but compute. Files that are open stay open: its input and output."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def _begin() -> None:
    """Python hears of a signal between two of its instructions; the kernel ends what doesn't come to the second."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + SECONDS) + 2, resource.RLIM_INFINITY))


def _out_of_time(_signal: int, frame: FrameType | None) -> None:
    place = ("", 0)
    while frame and not place[1]:
        template = frame.f_globals.get("__jinja_template__")
        place = (template.filename, template.get_corresponding_lineno(frame.f_lineno)) if template else place
        frame = frame.f_back
    raise TooMuch(_TOO_LONG, place)


def _answer(request: dict[str, Any], catalogs: OrderedDict[int, Sandbox]) -> dict[str, Any]:
    catalog = request["catalog"]
    if "texts" in request:
        catalogs[catalog] = Sandbox(request["root"], request["texts"])
        while len(catalogs) > CATALOGS:
            catalogs.popitem(last=False)
    if catalog not in catalogs:
        return {"unknown": catalog}
    catalogs.move_to_end(catalog)
    sandbox, name = catalogs[catalog], request["name"]
    try:
        if request["ask"] == "facts":
            return {"facts": _facts(sandbox, name)}
        uses = _uses(sandbox, name)
        return {"text": _render(sandbox, name, request["variables"]), "uses": uses}
    except Exception as error:  # expressions and filters raise whatever Python does
        return {"mistake": _mistake(sandbox, name, error)}


def _render(sandbox: Sandbox, name: str, variables: dict[str, Any]) -> str:
    template = sandbox.get_template(name)
    running: Any = template.root_render_func(template.new_context(variables))
    parts, size = [], 0
    try:
        for part in running:
            parts.append(part)
            size += len(part)
            if size > OUTPUT:
                line = template.get_corresponding_lineno(running.gi_frame.f_lineno)
                raise TooMuch(f"this makes more than {OUTPUT:,} characters", (sandbox.file(name), line))
    except Exception:
        sandbox.handle_exception()
    return "".join(parts)


def _facts(sandbox: Sandbox, name: str) -> dict[str, Any]:
    """The facts about a template that are known without rendering it."""
    if name not in sandbox.facts:
        tree = sandbox.parse(sandbox.texts[name], name, sandbox.file(name))
        sandbox.facts[name] = {
            "names": [(variable.name, variable.lineno, variable.ctx) for variable in tree.find_all(nodes.Name)],
            "undeclared": sorted(meta.find_undeclared_variables(tree)),
            "imports": [(variable.target, variable.lineno) for variable in tree.find_all(nodes.Import)],
            "references": _references(tree),
        }
    return sandbox.facts[name]


def _references(tree: nodes.Template) -> list[tuple[str | None, int]]:
    """The templates that one names, with the line; none: its names are only known when it is rendered."""
    references: list[tuple[str | None, int]] = []
    for kind in (nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include):
        for node in tree.find_all(kind):
            template: Any = node.template  # type: ignore[attr-defined]
            several = template.items if isinstance(template, nodes.Tuple | nodes.List) else [template]
            names: list[Any] = [argument.value if isinstance(argument, nodes.Const) else None for argument in several]
            references += [(name if isinstance(name, str) else None, node.lineno) for name in names]
    return references


def _uses(sandbox: Sandbox, name: str) -> list[str] | None:
    """The variables that a template and all that it names could look at; none: that can't be told.

    Raises:
        TooMuch: it names itself.
    """
    names, complete = set[str](), True
    done, pending = set[tuple[str, str]](), list[tuple[str, tuple[str, ...]]]([(name, (name,))])
    while pending:
        here, way = pending.pop()
        facts = _facts(sandbox, here)
        names.update(variable for variable, _, _ in facts["names"])
        for other, line in facts["references"]:
            if other is None:
                complete = False
            elif other in way:
                circle = " → ".join((*way[way.index(other) :], other))
                raise TooMuch(f"it names itself: {circle}", (sandbox.file(here), line))
            elif other in sandbox.texts and (here, other) not in done:
                done.add((here, other))
                pending.append((other, (*way, other)))
    return sorted(names) if complete else None


def _mistake(sandbox: Sandbox, name: str, error: Exception) -> tuple[str, int, str]:
    """File, line and what is wrong."""
    what = str(error.message if isinstance(error, TemplateError) else error) or type(error).__name__
    if isinstance(error, TemplateNotFound):
        what = f"there is no template {error.name!r}"
    if isinstance(error, MemoryError | RecursionError):
        what = _OUT_OF_MEMORY if isinstance(error, MemoryError) else _TOO_DEEP
    if isinstance(error, TemplateSyntaxError):
        return error.filename or sandbox.file(name), error.lineno, what
    ours = {sandbox.file(text) for text in sandbox.texts}
    steps = [(step.f_code.co_filename, line) for step, line in traceback.walk_tb(error.__traceback__)]
    place = next((step for step in reversed(steps) if step[0] in ours), None) or _parsed(sandbox, name, error)
    return *place, what


def _parsed(sandbox: Sandbox, name: str, error: Exception) -> tuple[str, int]:
    """Where something is wrong that is told before anything is rendered: something too deep has no place of its own."""
    file, line = sandbox.file(name), 0
    for step, _ in traceback.walk_tb(error.__traceback__):
        seen = step.f_locals
        if step.f_code is _facts.__code__:
            file = sandbox.file(seen["name"])
        if isinstance(parser := seen.get("self"), Parser):
            line = parser.stream.current.lineno
        elif isinstance(node := seen.get("node", parser), nodes.Node):
            line = node.lineno or line
    return file, line


_REWRITES = jinja2.debug.rewrite_traceback_stack  # imported where an exception is handled


if __name__ == "__main__":
    main()
