"""The OpenAPI description of the API, made from the table of verbs. Pure but for the version of Refit."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from flows.web.my_sessions.paths import API
from flows.web.my_sessions.problems import MEDIA_TYPE, Code
from flows.web.my_sessions.verbs.context import Nothing, Verb
from flows.web.my_sessions.verbs.table import VERBS
from flows.web.people.scopes import definitions

_REFERENCE = "#/components/schemas/{model}"
_PROBLEM = {
    "type": "object",
    "required": ["title", "status", "code"],
    "properties": {
        "title": {"type": "string", "description": "The problem."},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": [code.value for code in Code], "description": "Programs decide by it."},
        "detail": {"type": "string", "description": "Why it happened."},
        "hint": {"type": "string", "description": "Advice on it."},
    },
}


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """The whole description."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, Any] = {}
    for verb in VERBS:
        paths.setdefault(verb.path, {})[verb.method.lower()] = _operation(verb, schemas)
    login = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of JupyterHub with the scopes of the operation.",
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Refit: my sessions", "version": version("refit"), "x-scopes": definitions()},
        "servers": [{"url": API}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": login}},
    }


def _operation(verb: Verb, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": _schema(verb.gives, schemas, "serialization")}}
    problem = {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    answers: dict[str, Any] = {"default": {"description": "It isn't done.", "content": problem}}
    answers["202" if verb.later else "200"] = {
        "description": "It begins." if verb.later else "Done.",
        "content": content,
    }
    operation = {"operationId": verb.name, "summary": verb.what, "responses": answers}
    parameters = [_in_path(name) for name in re.findall(r"{(\w+)}", verb.path)]
    if verb.takes is not Nothing and verb.method == "GET":
        parameters += _in_query(verb)
    elif verb.takes is not Nothing:
        taken = {"application/json": {"schema": _schema(verb.takes, schemas, "validation")}}
        operation["requestBody"] = {"content": taken}
    return {**operation, "parameters": parameters, "security": [{"token": [verb.scope.value]}]}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(verb: Verb) -> list[dict[str, Any]]:
    schema = verb.takes.model_json_schema()
    needed = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": field}
        for name, field in schema.get("properties", {}).items()
    ]


def _schema(kind: Any, schemas: dict[str, Any], mode: JsonSchemaMode) -> dict[str, Any]:
    """The schema of a type; the types that it is made of go into `schemas`."""
    schema = TypeAdapter(kind).json_schema(ref_template=_REFERENCE, mode=mode)
    schemas.update(schema.pop("$defs", {}))
    return schema
