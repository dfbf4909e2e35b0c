"""Forms of pages, made from the table of verbs: which buttons a session has, and what they ask for."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.session_view import MySession
from flows.web.my_sessions.verbs.context import Verb
from flows.web.my_sessions.verbs.table import VERBS

_LONGEST_FIELD = 1 << 13  # bytes
_PARTS = 4  # of the stem of a profile: IDE, bundle, system, Python


@dataclass(frozen=True)
class Field:
    """A field of a form.

    Attributes:
        name: of the parameter.
        label: for people.
        kind: `select`, or the type of an input.
        choices: value → what it is called, of a `select`.
        needed: whether it can't be left out.
    """

    name: str
    label: str
    kind: str
    choices: Mapping[str, str]
    needed: bool


@dataclass(frozen=True)
class Form:
    """One form."""

    verb: Verb
    fields: tuple[Field, ...]

    @property
    def plain(self) -> bool:
        """Whether it is no more than a button."""
        return not self.fields


def forms(session: MySession, caller: Caller) -> tuple[Form, ...]:
    """The forms that somebody has for a session, in the order of the table."""
    if not session.is_mine or (session.doing and not session.doing.ended):
        return ()
    return tuple(Form(verb, tuple(fields(verb))) for verb in VERBS if _offered(verb, session, caller))


def fields(verb: Verb) -> Iterator[Field]:
    """The fields of a verb's form; hidden parameters are left out."""
    schema = verb.takes.model_json_schema()
    for name, field in schema.get("properties", {}).items():
        if field.get("hidden"):
            continue
        choices, label = dict(field.get("choices", ())), str(field.get("title") or name)
        kind = "select" if choices else {"date": "date", "integer": "number"}.get(_type(field), "text")
        yield Field(name, label, kind, choices, name in schema.get("required", []))


def read(verb: Verb, sent: Mapping[str, str]) -> dict[str, Any]:
    """The parameters that a form has sent; fields that were left empty aren't among them."""
    names = verb.takes.model_fields
    if "chosen" in sent and {"profile", "release"} <= set(names):  # a choice among profiles of all releases
        release, _, profile = sent["chosen"].partition("/")
        sent = {**sent, "profile": profile, "release": release}
    return {name: value for name, value in sent.items() if name in names and value != ""}


async def with_files(headers: Headers, content: bytes) -> dict[str, str]:
    """The fields of a form that was sent with files, whose content is in base64 here.

    Raises:
        Problem: it is broken.
    """

    async def whole() -> AsyncGenerator[bytes, None]:
        yield content

    parser = MultiPartParser(headers, whole(), max_files=1, max_fields=20, max_part_size=_LONGEST_FIELD)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError):
        raise Problem(Code.invalid, "The form is broken.", hint="load the page anew, and send it again.") from None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(form.close)
        return {name: await _text_of(value) for name, value in form.multi_items()}


async def _text_of(value: UploadFile | str) -> str:
    return value if isinstance(value, str) else base64.b64encode(await value.read()).decode()


def choices(offered: Iterable[Any]) -> dict[str, list[str]]:
    """IDEs, systems and releases of the profiles that are offered: those that a profile of one's own can have. Pure."""
    stems = [(offer.profile.removeprefix("cuda-").split("-"), offer.release) for offer in offered if not offer.by]
    return {
        "ide": sorted({stem[0] for stem, _ in stems if len(stem) == _PARTS}),
        "os": sorted({stem[2] for stem, _ in stems if len(stem) == _PARTS}),
        "release": sorted({release for _, release in stems}, reverse=True),
    }


def _offered(verb: Verb, session: MySession, caller: Caller) -> bool:
    offered = verb.button and session.state in verb.shown and verb.scope in caller.scopes
    return bool(offered and verb.fits(session))


def _type(schema: Mapping[str, Any]) -> str:
    """The JSON type of a parameter; `date` for a day."""
    kinds = [schema, *schema.get("anyOf", ())]
    return next((kind.get("format") or kind["type"] for kind in kinds if kind.get("type", "null") != "null"), "string")
