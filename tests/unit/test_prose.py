"""The language of docs, docstrings, comments and messages: no sentence begins with Who, What or Whoever as its subject.

No clause after a semicolon and no heading does either, nor one after a colon that has a verb of its own beside the
clause's. A description of an attribute, an argument or an error begins with a noun. Questions may begin with them.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORD = r"(?P<word>[Ww]ho|[Ww]hoever|[Ww]hose|[Ww]hat|[Ww]hatever)\b"
# Beginnings of sentences: of a text, of a paragraph, of an item or a cell; after the end of a sentence; after a mark.
# A small letter begins one after a semicolon. After a colon, "what" and "who" may be indirect questions.
SENTENCE = r"""\A\s*|[.!?:;|…]\s+|\n[ \t]*\n\s*|\n[ \t]*(?:[*+-]|\d+\.|#+)[ ]|\*\*|[*|][ ]|[("“`•]"""
BEGINNING = re.compile(rf"(?:(?:{SENTENCE})(?=W)|;\s+|:\s+(?=wh\w+ever)){WORD}")
# After a colon, an indirect question has one verb before it ends or a comma comes; with a second one the clause is the
# subject of a sentence. Verbs are told by these words alone: others may be nouns.
VERB = r"""(?:(?:is|isn't|are|aren't|was|wasn't|were|has|hasn't|have|had|does|doesn't|becomes)\b
|(?:may|can|can't|will|would|must)\ (?:not\ )?(?!not\b)\w+)"""
SUBJECT = re.compile(
    rf""":\s+{WORD}[^,;:.?!|()—]*?\b{VERB}(?!\ (?:been|to|be)\b)
    (?:(?!\b(?:and|or|that|which|who|what|if|while)\b)[^,;:.?!|()—])*?\b{VERB}""",
    re.VERBOSE,
)
SECTION = re.compile(r"(?m)^ +(?:Args|Attributes|Raises|Returns|Yields):\n")
DESCRIPTION = re.compile(rf"(?m)^ +[\w*., ]+: {WORD}")
RESULT = re.compile(rf"(?m)^ +(?:Returns|Yields):\n +(?=w){WORD}(?!:)")
END = re.compile(r"""[.!?|](?=\s|\Z|[)"*|])|\n\s*\n|\n\s*[*#-]+ """)
OTHERS = (".png", ".json", ".lock")


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments that belong together, and strings: each with its first line."""
    comment: list[tuple[int, str]] = []
    before = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != comment[-1][0] + 1:
                yield comment[0][0], "\n".join(line for _, line in comment)
                comment = []
            comment.append((token.start[0], token.string.lstrip("#: ")))
        elif token.type == tokenize.STRING:
            goes_on = before is not None and not re.search(r"(?:[.!?:;…] ?|\\n)[\"']+\Z", before)
            yield token.start[0], ("… and " if goes_on else "") + re.sub(r"\A\w*[\"']+|[\"']+\Z", "", token.string)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.string if token.type == tokenize.STRING else None
    if comment:
        yield comment[0][0], "\n".join(line for _, line in comment)


def _beginnings(path: Path, part: str) -> Iterator[re.Match[str]]:
    yield from BEGINNING.finditer(part)
    yield from SUBJECT.finditer(part)
    if path.suffix == ".py" and (section := SECTION.search(part)):
        yield from DESCRIPTION.finditer(part, section.end())
        yield from RESULT.finditer(part)


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a file that begin with one of the words, but for questions: line and text."""
    text = path.read_text()
    if not re.search(WORD, text):
        return
    if path.suffix == ".py":
        parts = _of_python(text)
    else:
        # The marks of comments go; those of headings begin a text, as an empty line does.
        parts = iter([(1, text if path.suffix == ".md" else re.sub(r"(?m)^\s*(?:#|//|\*)+ ?", _blank, text))])
    for line, part in parts:
        for beginning in _beginnings(path, part):
            rest = part[beginning.start("word") :]
            end = END.search(rest)
            sentence = rest[: end.end()] if end else rest
            if not sentence.rstrip().endswith("?"):
                yield line + part.count("\n", 0, beginning.start("word")), " ".join(sentence.split())


def test_no_sentence_has_a_clause_as_its_subject() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.splitlines() if not name.endswith(OTHERS)]
    assert files
    mistakes = [
        f"{name}:{line}: {text}"
        for name in files
        if (ROOT / name).is_file() and (ROOT / name) != Path(__file__)
        for line, text in sentences(ROOT / name)
    ]
    assert not mistakes, "\n".join(["Begin with a person or a thing:", *mistakes])


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", '"""What this is."""\n', [1]),
        ("a.py", '"""A thing.\n\nIt is here. Whoever asks gets it.\n"""\n', [3]),
        ("a.py", "x = 1\n# It is one.\n# What is\n# there stays.\n", [3]),
        ("a.py", 'x = 1  # Who knows this waits.\nraise ValueError(f"What {x} says is wrong.")\n', [1, 2]),
        ("a.py", 'x = "It is " "What you see."\ny = "It is so. " "What you see is it."\n', [2]),
        ("a.py", '"""Is it there? What is it?"""\n', []),
        ("a.md", "# What you see\n\nA thing.\n* What fails stops.\n\nIt is\nWhat it was.\n", [4]),
        ("a.md", "| setting | text |\n| a | Whose clock. |\n", [2]),
        ("a.py", '"""It is; what fails\n stops. It ends: whoever asks\n is told."""\n', [1, 2]),
        ("a.py", '"""It says two things: what it is, and who made it."""\n', []),
        ("a.py", '"""It is there: what was built once is taken again."""\n', [1]),
        ("a.py", '"""The plan: what is there, and what has to be built."""\n', []),
        (
            "a.py",
            '"""A file.\n\n    Attributes:\n        owner: whose it is.\n        size, mode: its own.\n    """\n',
            [4],
        ),
        ("a.py", '"""A.\n\n    Args:\n        what: the action.\n\n    Returns:\n        what it did.\n    """\n', [7]),
        ("a.sh", "# What fails, stops.\necho\n", [1]),
    ],
)
def test_a_clause_as_subject_is_seen(tmp_path: Path, name: str, text: str, lines: list[int]) -> None:
    (tmp_path / name).write_text(text)
    assert sorted(line for line, _ in sentences(tmp_path / name)) == lines
