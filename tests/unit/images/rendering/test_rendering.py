"""Templates are data: each makes a text or a mistake with its place, in bounded time and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.authoring.lint import templates as linted
from flows.core.documents import Mistakes
from flows.images.rendering import worker
from flows.images.rendering.process import RENDERER, Renderer
from flows.images.rendering.templates import Templates, read_templates
from tests.support.examples import several
from tests.support.waiting import PATIENCE

ROOT = Path("/catalog")
MARK = "REFIT_WAS_HERE"
NAMESPACE = "{% set n = namespace(a=9, b='x') %}"
ATTACKS = {
    "a command by cycler": f'{{{{ cycler.__init__.__globals__.os.popen("touch {MARK}").read() }}}}',
    "a command by namespace": f'{{{{ namespace.__init__.__globals__["os"].system("touch {MARK}") }}}}',
    "a command by self": "{{ self.__init__.__globals__ }}",
    "a command by a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a command by a filter": "{{ [''] | map(attribute='__class__') | map(attribute='__mro__') | list | length + x }}",
    "attr": "{{ '' | attr('__class__') | attr('__mro__') }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "a change of what others see": "{{ things.append(1) }}",
    "a loop without end": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that grows": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "a long range": "{% for x in range(10**9) %}{% endfor %}",
    "a long text": "{{ 'x' * 10**10 }}",
    "a long text that is made when it is compiled": "{{ 'x' * 10000000000 }}",
    "a text that is long enough": "{{ 'x' * 2000000 }}",
    "a long number": "{{ '%1000000000d' % 1 }}",
    "a long number by a filter": "{{ '%1000000000d' | format(1) }}",
    "a long number by format": "{{ '{:1000000000d}'.format(1) }}",
    "a long list": "{{ [1] * 10**10 }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a power of powers": "{{ ((((9 ** 999) ** 999) ** 999) ** 999) | length }}",
    "a number that is squared": NAMESPACE + "{% for a in [1] * 99 %}{% set n.a = n.a * n.a %}{% endfor %}",
    "a text that is doubled": NAMESPACE + "{% for a in [1] * 99 %}{% set n.b = n.b ~ n.b %}{% endfor %}",
    "a text that is centred": "{{ 'x' | center(10000000000) }}",
    "a text that is filled": "{{ 'x'.zfill(10000000000) }}",
    "a text that is indented": "{{ ('\n' * 99999) | indent(9999999, true) }}",
    "a text that is replaced": "{{ ('x' * 99999).replace('', 'x' * 99999) }}",
    "lists of lists": "{{ range(99999) | batch(10000000000, 'x') | list | length }}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros by turns": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a call block without end": "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
    "a loop that recurs": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "it includes itself": "\n{% include 'x.j2' %}",
    "it includes itself by a variable": "{% set me = 'x.j2' %}{% include me %}",
    "it extends itself": "\n\n{% extends 'x.j2' %}",
    "it imports itself": "{% import 'x.j2' as x %}{{ x }}",
    "it includes what includes it": "{% include 'y.j2' %}",
    "it extends what extends it": "{% extends 'z.j2' %}",
    "another file": "{% include '../../etc/passwd' %}",
    "a file by its whole path": "{% include '/etc/passwd' %}",
    "brackets": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "lists in lists": "{{ " + "[" * 5_000 + "]" * 5_000 + " }}",
    "conditions in conditions": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "loops in loops": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "not, not": "{{ " + "not " * 5_000 + "x }}",
    "minus, minus": "{{ " + "-" * 20_000 + "1 }}",
    "a long sum": "{{ " + "1 + " * 20_000 + "1 }}",
    "a long chain of filters": "{{ 1" + " | abs" * 20_000 + " }}",
    "a number of 5,000 digits": "{{ " + "9" * 5_000 + " }}",
    "a name that nobody knows": "{{ prot }}",
    "a filter that nobody knows": "{{ 1 | nothing }}",
    "what is other each time": "{{ lipsum() }}",
    "what is other each time, by a filter": "{{ [1, 2] | random }}",
    "a block without end": "{% if x %}",
    "a comment without end": "{# x",
    "a statement that is none": "{% if %}",
    "a division by zero": "{{ 1 / 0 }}",
    "text and a number": "{{ 'a' + 1 }}",
    "a module": "{{ import('os') }}",
    "an extension": "{% do x %}",
    "debug": "{% debug %}",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_template_that_goes_too_far_is_a_mistake_with_its_line(name: str, tmp_path: Path) -> None:
    texts = {"x.j2": ATTACKS[name], "y.j2": "\n{% include 'x.j2' %}", "z.j2": "{% extends 'x.j2' %}"}
    templates = Templates(tmp_path, texts)
    with pytest.raises(Mistakes) as caught:
        templates.render("x.j2", x="x", things=[1])
    [mistake] = caught.value.mistakes
    assert mistake.file.parent == tmp_path and mistake.what and len(mistake.what) < 500
    assert mistake.line > 0 or name in ("a power of powers", "loops in loops"), mistake
    assert mistake.line <= 1 + mistake.file.name.count("y") + ATTACKS[name][:9].count("\n")
    list(linted.mistakes(templates, {"x.j2": {"x", "things"}}))
    assert not Path(MARK).exists() and not Path("/", MARK).exists()


def test_what_templates_need_is_there() -> None:
    text = (
        "{% import 'y.j2' as y with context %}{{ y.of(3) }} {{ '%s=%d' % ('a', 7 * 6) }} {{ d.a.url }}\n"
        "{% for key, value in d.items() if value.url is defined %}{{ key ~ loop.index }}{% endfor %}\n"
        "{{ names | join(' ') | upper | replace('B', 'x') }} {{ 2 ** 10 }} {{ names | length }}"
    )
    templates = Templates(ROOT, {"x.j2": text, "y.j2": "{% macro of(n) %}{{ n }}{{ z }}{% endmacro %}"})
    given = {"d": {"a": {"url": "u"}}, "names": ("a", "b"), "z": True}
    assert templates.render("x.j2", **given) == "3True a=42 u\na1A x 1024 2\n"


def test_what_a_template_does_not_name_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = Templates(ROOT, {"x.j2": "{% include 'y.j2' %}", "y.j2": "{{ a }}", "z.j2": "{% include a %}{{ b }}"})
    asked: list[str] = []
    ask = RENDERER.ask
    monkeypatch.setattr(RENDERER, "ask", lambda request: asked.append(request["name"]) or ask(request))
    assert {templates.render("x.j2", a=1, b=b) for b in range(9)} == {"1\n"}
    assert templates.render("x.j2", a=2, b=0) == "2\n"
    # The first question may be asked twice: the process doesn't know the catalog then.
    assert 2 <= len(asked) <= 3
    assert [templates.render("z.j2", a="y.j2", b=b) for b in (1, 2, 1)] == ["y.j21\n", "y.j22\n", "y.j21\n"]


def test_a_mistake_is_found_once_and_told_each_time() -> None:
    templates = Templates(ROOT, {"x.j2": "{{ 'x' * n }}"})
    for _ in range(3):
        with pytest.raises(Mistakes, match="mistake"):
            templates.render("x.j2", n="y")


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    """A process of this test's own."""
    own = Renderer()
    yield own
    own.end()


def asked(renderer: Renderer, text: str) -> dict[str, object]:
    request = {"ask": "render", "name": "x", "variables": {}, "catalog": 1, "root": "/", "texts": {"x": text}}
    return renderer.ask(request)


def test_the_process_may_do_nothing(renderer: Renderer) -> None:
    renderer.start()
    assert asked(renderer, "a") == {"text": "a", "uses": []}
    process = renderer._process
    assert process
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    assert status["NoNewPrivs"] == "1"
    if os.geteuid() == 0:
        assert set(status["Uid"].split()) == {str(worker._NOBODY)} == set(status["Gid"].split())
        assert not int(status["CapEff"], 16) and not status["Groups"].strip()
    limits = " ".join(Path(f"/proc/{process.pid}/limits").read_text().split())
    body = {"open files": 3, "processes": 0, "file size": 0, "address space": worker.MEMORY, "core file size": 0}
    for limit, most in body.items():
        assert f"Max {limit} {most} {most} " in limits
    names = [Path(f"/proc/{process.pid}/fd/{number}").readlink().name for number in (0, 1, 2)]
    assert len(os.listdir(f"/proc/{process.pid}/fd")) == 3 and names[2] == "null"  # noqa: PTH208
    assert Path(f"/proc/{process.pid}/environ").read_bytes() == b"LANG=C.UTF-8\0"


@pytest.mark.slow
def test_a_process_that_was_killed_is_started_anew(renderer: Renderer) -> None:
    asked(renderer, "a")
    process = renderer._process
    assert process
    process.kill()
    process.wait()
    told = Templates(ROOT, {"x": "{{ 9 }}"})
    assert told.render("x") == "9\n"
    with pytest.raises(Exception, match="has ended"):
        asked(renderer, "b")
    assert asked(renderer, "b")["text"] == "b"


def test_it_ends_with_whoever_asks(renderer: Renderer) -> None:
    asked(renderer, "a")
    process = renderer._process
    assert process and process.stdin
    process.stdin.close()
    assert process.wait(PATIENCE) == 0, "without an input it ends by itself"
    renderer.end()
    asked(renderer, "b")
    another = renderer._process
    assert another and another.pid != process.pid
    renderer.end()
    assert not psutil.pid_exists(another.pid)


@pytest.mark.slow
def test_a_fork_has_a_process_of_its_own(renderer: Renderer) -> None:
    asked(renderer, "a")
    child = os.fork()
    if not child:
        try:
            fine = asked(renderer, "b")["text"] == "b"
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asked(renderer, "c")["text"] == "c"


def test_a_template_is_a_file_of_the_catalog(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    (catalog / "snippets").mkdir(parents=True)
    (tmp_path / "secret").write_text("hush")
    (catalog / "snippets" / "x.j2").symlink_to("../../secret")
    os.mkfifo(catalog / "snippets" / "y.j2")
    (catalog / "snippets" / "z.j2").write_text("x" * 2_000_000)
    with pytest.raises(Mistakes) as caught:
        read_templates(catalog)
    assert [mistake.file.name for mistake in caught.value.mistakes] == ["x.j2", "y.j2", "z.j2"]
    assert "hush" not in str(caught.value)


WORDS = [
    *("{{ ", " }}", "{% ", " %}", "{# ", " #}", "for ", "a ", "in ", "[1, 2] ", "endfor ", "if ", "endif ", "(", ")"),
    *("set ", "a = ", "macro m() ", "endmacro ", "m() ", "| join ", "| list ", "'", "~ ", "* ", "** ", "99999 ", "\n"),
    *("include 'x.j2' ", "extends 'y.j2' ", "import 'y.j2' as y ", "block b ", "endblock ", "range(9) ", "[", "]", "."),
]


@pytest.mark.slow
@settings(max_examples=several(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(WORDS), max_size=25).map("".join) | st.text(max_size=60))
def test_no_text_does_more_than_make_mistakes(text: str) -> None:
    templates = Templates(ROOT, {"x.j2": text, "y.j2": "{{ a }}"})
    try:
        templates.render("x.j2", a=1)
    except Mistakes as found:
        assert all(mistake.file.is_relative_to(ROOT) and mistake.what for mistake in found.mistakes)
    list(linted.mistakes(templates, {"x.j2": {"a"}}))
