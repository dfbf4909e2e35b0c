"""Lint: each rule on a catalog that breaks it, with file and line; and this repository's own catalog."""

from __future__ import annotations

import re
import shutil
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.authoring.lint import rules, templates
from flows.authoring.lint.catalog import lint
from flows.authoring.lint.shell import bodies, script
from flows.images.rendering.templates import Templates
from tests.support.machine import ROOT
from tests.support.small_catalog import catalog

__all__ = ["catalog"]  # a fixture
TODAY = date(2026, 11, 21)
FILE = Path("x.j2")
IDE = "ides/2-runtime/runtime.snippet.j2"
SITE = "https://example.org"


def mistakes_in(text: str, *, upper: bool = True) -> list[tuple[int, str]]:
    return [(mistake.line, mistake.what) for mistake in rules.instructions(FILE, text, upper=upper)]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("RUN true\nRUN chmod -R g+w /opt", 2, "'chmod -R' copies"),
        ("RUN echo; \\\n    chown --recursive 1001 /opt", 2, "'chown --recursive' copies"),
        ("RUN fix-permissions /opt", 1, "'fix-permissions' copies"),
        ('LABEL build="{{ date }}"\nRUN true', 1, "is built again"),
        ("LABEL name=jupyter_20261121\nRUN true", 1, "is built again"),
        ("RUN curl -fsSL https://example.org/x | tar xz", 1, "isn't verified"),
        ('RUN set -eu; \\\n    wget -q "$URL"', 2, "isn't verified"),
        ("ADD https://example.org/x /x", 1, "isn't verified"),
        (f"RUN curl -O {SITE}/a; \\\n    curl -O {SITE}/b; \\\n    sha256sum -c sums", 2, "isn't verified"),
        (f"RUN curl -O {SITE}/a; \\\n    sha256sum -c a.sum; \\\n    curl {SITE}/b | sh", 3, "isn't verified"),
        (f"RUN sha256sum -c sums; \\\n    curl -O {SITE}/a", 2, "isn't verified"),
        ("RUN curl -O {{ url }}", 1, "isn't verified"),
        (f"RUN python3 -c 'from urllib.request import *; urlretrieve(\"{SITE}\")'", 1, "isn't verified"),
        (f'RUN Rscript -e \'download.file("{SITE}", "x")\'', 1, "isn't verified"),
        ('RUN yum install -y "https://example.org/x.rpm"', 1, "isn't verified"),
        ("RUN true; \\\n    apt-get -q install x", 2, "no lock covers 'apt-get -q install'"),
        ("RUN pip install six", 1, "no lock covers 'pip install'"),
        ("RUN npm install -g x", 1, "no lock covers 'npm install'"),
        ("RUN pip3.11 --no-cache-dir install six", 1, "no lock covers"),
        ("RUN pip install six; \\\n    pip install --require-hashes -r x.txt", 1, "no lock covers 'pip install'"),
        ("RUN git clone https://example.org/x", 1, "no lock covers 'git clone'"),
        ("RUN Rscript -e 'remotes::install_github(\"a/b\")'", 1, "no lock covers"),
        ("RUN Rscript -e 'install.packages(\"x\")'", 1, "no lock covers"),
    ],
)
def test_what_instructions_must_not_do(text: str, line: int, what: str) -> None:
    [(where, said)] = mistakes_in(text)
    assert where == line and what in said


@pytest.mark.parametrize(
    "text",
    [
        "RUN find /opt ! -perm -g+w -exec chmod g+w {} +",
        "RUN true\nLABEL build=20261121",
        "LABEL licence=MIT\nRUN true",
        "RUN curl -fsSLo x https://example.org/x; \\\n    echo '{{ sha }}  x' | sha256sum -c -",
        f"RUN curl -O {SITE}/a; sha256sum -c a.sum; \\\n    curl -O {SITE}/b; gpg --batch --verify b.sig b",
        "RUN python3 -c 'import hashlib; hashlib.sha256(urlopen(url).read()).hexdigest() == sha or exit(1)'",
        "RUN curl --fail http://127.0.0.1:8888/api",
        "RUN pip install \\\n    --require-hashes -r x.txt",
        "RUN npm ci",
        "# curl https://example.org\n{# chmod -R #}",
        "COPY curl /x",
    ],
)
def test_what_instructions_may_do(text: str) -> None:
    assert mistakes_in(text) == []


def test_scripts_bring_nothing_that_is_not_checked() -> None:
    text = f"#!/bin/sh\n# curl {SITE}\ncurl {SITE}/x | sh\npip install six\n\nsudo apt-get install -y x\nnpm ci\n"
    assert [(m.line, m.what) for m in rules.script(FILE, text)] == [
        (3, "this download isn't verified"),
        (4, "no lock covers 'pip install'"),
        (6, "no lock covers 'apt-get install'"),
    ]
    assert not list(rules.script(FILE, f"#!/bin/sh\ncurl -O {SITE}/x\necho '{{sum}}  x' | sha256sum -c -\n"))


def test_shared_snippets_install_what_was_locked_and_every_place_is_named() -> None:
    text = "RUN dnf install -y {{ system }}; \\\n    chmod -R g+w /a; \\\n    chmod -R g+w /b"
    assert [mistake.line for mistake in rules.instructions(FILE, text, upper=True, shared=True)] == [2, 3]


def test_a_base_has_nothing_below_that_it_could_copy() -> None:
    assert mistakes_in("RUN chmod -R go-w /etc", upper=False) == []


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA PRIVATE KEY-----",
        "key = AKIAABCDEFGHIJKLMNOP",
        "x: ghp_" + 36 * "a",
        "url = 'https://me:hush-hush@example.org'",
        "ENV DB_PASSWORD=hush-hush",
    ],
)
def test_secrets_are_found_and_not_repeated(text: str) -> None:
    [mistake] = rules.secrets(FILE, f"\n{text}\n")
    assert mistake.line == 2 and "hush" not in str(mistake) and text not in str(mistake)


@pytest.mark.parametrize("text", ["https://{user}:{password}@x", "ENV TOKEN=$TOKEN", "token = os.environ['TOKEN']"])
def test_names_of_secrets_are_none(text: str) -> None:
    assert list(rules.secrets(FILE, text)) == []


def test_templates_are_read_without_being_rendered() -> None:
    texts = {
        "a.j2": '{% import "b.j2" as b with context %}\n{% if x %}\n{{ prot }}\n{% endif %}',
        "b.j2": "{% set y = x %}\n{{ z }}",
        "c.j2": "{% if %}",
        "d.j2": "{{ nobody_knows }}",
    }
    said = [
        (m.file.name, m.line, m.what, m.hint)
        for m in templates.mistakes(Templates(Path(), texts), {"a.j2": {"x", "port"}})
    ]
    assert said == [
        ("a.j2", 3, "'prot' is not defined", "did you mean 'port'?"),
        ("a.j2", 1, "'b' is imported and not used", "take it out"),
        ("b.j2", 2, "'z' is not defined", "known: port, x"),
        ("b.j2", 1, "'y' is set and not used", "take it out"),
        ("c.j2", 1, "Expected an expression, got 'end of statement block'", ""),
    ]


def test_a_rendered_line_is_found_again_in_its_template() -> None:
    text = {FILE: "{% if a %}\nRUN {{ begin }} \\\n{% endif %}\n    echo {{ b }}; \\\n    true\n"}
    [body] = bodies("ENV A=b\nRUN --mount=x set -eu; \\\n    echo word; \\\n    true\n", text)
    assert body.text == "#!/bin/sh\nset -eu; \\\n    echo word; \\\n    true\n"
    assert [body.origin(line) for line in (3, 4, 99)] == [(FILE, 4), (FILE, 5), (FILE, 5)]


def test_a_comment_between_the_lines_of_a_run_does_not_end_its_script() -> None:
    text = "RUN true && \\\n    # why\n\n    false\nENV A=b\n"
    [body] = bodies(text, {Path("a.j2"): text})
    assert body.text == "#!/bin/sh\ntrue && \\\n    false\n" and body.origin(3) == (Path("a.j2"), 4)


def test_only_scripts_of_a_shell_are_scripts() -> None:
    assert script(FILE, "#!/usr/bin/env bash\nx") and script(FILE, "#!/bin/sh\nx")
    assert not script(FILE, "#!/usr/bin/python3\nx") and not script(FILE, "x")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_everything_is_reported_at_once_with_file_and_line(catalog: object, tmp_path: Path) -> None:
    template = tmp_path / IDE
    start = len(template.read_text().splitlines())
    template.write_text(template.read_text() + 'RUN cd /nowhere; \\\n    rm -rf "$HOME/"*\nENV A={{ prot }}\n')
    (tmp_path / "ides/1-jupyter/files/start-jupyter").write_text(f"#!/bin/sh\n\ncd $1\ncurl {SITE} | sh\n")
    (tmp_path / "releases/2026a.yaml").write_text(
        (tmp_path / "releases/2026a.yaml").read_text()
        + 'exceptions: [{package: a, range: ">1", reason: x, expires: 2026-11-20}]\n'
    )
    said = [
        f"{m.file.relative_to(tmp_path)}:{m.line}: {m.what}"
        for m in lint(tmp_path, TODAY).mistakes
        if m.file.name != "Pipfile.lock"  # the bundles of this catalog were never locked
    ]
    assert [line for line in said if "SC" not in line] == [
        "ides/1-jupyter/files/start-jupyter:4: this download isn't verified",
        "releases/2026a.yaml:4: the exception for a (x) held until 2026-11-20",
    ]
    assert "ides/1-jupyter/files/start-jupyter:3" in " ".join(said) and re.search(r"SC2164", " ".join(said))
    assert start


@pytest.mark.slow
def test_this_catalog_has_no_mistakes() -> None:
    # Whether its locks are there and fit is another question.
    report = lint(ROOT, TODAY)
    assert [str(m) for m in report.mistakes if m.hint != "run `refit lock`"] == []
    assert report.templates > 10


@given(st.text(max_size=300))
def test_no_text_is_too_odd_for_the_rules(text: str) -> None:
    list(rules.secrets(FILE, text))
    list(rules.instructions(FILE, text, upper=True))
    list(rules.script(FILE, text))
    list(templates.mistakes(Templates(Path(), {"x": text}), {"x": {"a"}}))
