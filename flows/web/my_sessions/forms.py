"""Forms of pages, made from the table of verbs: which buttons a session has, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.session_view import MySession
from flows.web.my_sessions.verbs.context import Verb
from flows.web.my_sessions.verbs.table import VERBS


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
    for name, one in schema.get("properties", {}).items():
        if one.get("hidden"):
            continue
        choices, label = dict(one.get("choices", ())), str(one.get("title") or name)
        kind = "select" if choices else {"date": "date", "integer": "number"}.get(_type(one), "text")
        yield Field(name, label, kind, choices, name in schema.get("required", []))


def read(verb: Verb, sent: Mapping[str, str]) -> dict[str, Any]:
    """The parameters that a form has sent; fields that were left empty aren't among them."""
    names = verb.takes.model_fields
    if "chosen" in sent and {"profile", "release"} <= set(names):  # a choice among profiles of all releases
        release, _, profile = sent["chosen"].partition("/")
        sent = {**sent, "profile": profile, "release": release}
    return {name: value for name, value in sent.items() if name in names and value != ""}


def _offered(verb: Verb, session: MySession, caller: Caller) -> bool:
    offered = verb.button and session.state in verb.shown and verb.scope in caller.scopes
    return bool(offered and verb.fits(session))


def _type(schema: Mapping[str, Any]) -> str:
    """The JSON type of a parameter; `date` for a day."""
    kinds = [schema, *schema.get("anyOf", ())]
    return next((one.get("format") or one["type"] for one in kinds if one.get("type", "null") != "null"), "string")
