"""Each verb of a page is one of the API, and each of those one of the shell: the three tables are compared."""

from __future__ import annotations

import re
from pathlib import Path

from flows.web.my_sessions import openapi, pages
from flows.web.my_sessions.verbs.table import BY_NAME, VERBS
from tests.support.machine import ROOT

COMMANDS = set(Path(ROOT, "tests/unit/cli/commands.txt").read_text().splitlines())
TEMPLATES = Path(pages.__file__).with_name("templates")
# Verb → command, where they aren't called the same.
CALLED = {
    "roll-back": "mine rollback",
    "bring-back": "mine rollback",  # with --only
    "add-keys": "mine add-key",
    "creations": "mine create",  # which waits until it is there
    "own-profiles-seen": "mine own-profiles",
}
# Forms that do nothing with a session: a program is let in, which `refit login` asks for.
OTHERS = {"device.html"}


def named_by_pages() -> set[str]:
    """The verbs that forms send, that pages ask for what they show, and that have a button."""
    texts = {path.name: path.read_text() for path in TEMPLATES.glob("*.html")}
    sent = {name for text in texts.values() for name in re.findall(r"/do/([a-z][a-z-]*)", text)}
    asked = set(re.findall(r'(?:_asked\(|BY_NAME\[)"([a-z-]+)"', Path(pages.__file__).read_text()))
    return sent | asked | {verb.name for verb in VERBS if verb.button}


def test_each_verb_of_a_page_is_one_of_the_api() -> None:
    named = named_by_pages()
    assert {"share", "steer", "overview", "list", "move"} <= named, "pages are read"
    assert not named - BY_NAME.keys()
    described = {(method, path) for path, verbs in openapi.description()["paths"].items() for method in verbs}
    assert {(verb.method.lower(), verb.path) for verb in VERBS} <= described


def test_each_form_of_a_page_is_of_a_verb() -> None:
    for path in TEMPLATES.glob("*.html"):
        forms = re.findall(r"<form[^>]*method=\"post\"[^>]*>", path.read_text())
        assert path.name in OTHERS or all("/do/" in form for form in forms), path.name


def test_each_verb_that_changes_something_is_on_a_page() -> None:
    assert not {verb.name for verb in VERBS if verb.method == "POST"} - named_by_pages()


def test_each_verb_of_the_api_is_one_of_the_shell() -> None:
    missing = {verb.name for verb in VERBS if CALLED.get(verb.name, f"mine {verb.name}") not in COMMANDS}
    assert not missing
