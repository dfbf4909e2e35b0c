"""Rules for bundles of people's own: what is refused, with file and line."""

from __future__ import annotations

import pytest

from flows.authoring.own import recipe

PIPFILE = (
    '[packages]\nsix = "~=1.17"\nrich = {version = "*", extras = ["jupyter"]}\n\n[requires]\npython_version = "3.11"\n'
)
GOOD = {
    "display.txt": "Ada's own\n",
    "bundle.yaml": "# mine\nextends: minimal\n",
    "os/os-packages.txt": "tmux\n",
    "py311/Pipfile": PIPFILE,
    "custom/custom.snippet.j2": "ENV A=b\n",
}


def said(**changed: str | bytes | None) -> list[str]:
    files = {path: text.encode() for path, text in GOOD.items()}
    for path, text in changed.items():
        if text is None:
            del files[path]
        else:
            files[path] = text if isinstance(text, bytes) else text.encode()
    return [str(mistake) for mistake in recipe.mistakes(files)]


def test_a_whole_bundle_has_no_mistakes() -> None:
    assert said() == []


@pytest.mark.parametrize(
    "path",
    [
        *("py311/Pipfile.lock", "builder/sources.txt", "builder/builder.snippet.j2", "releases/2026a.yaml"),
        *("ides/1-jupyter/ide.yaml", "snippets/shell.j2", "custom/other.j2", "../bundle.yaml", "py311/../x", "run.sh"),
    ],
)
def test_other_files_are_refused(path: str) -> None:
    [mistake] = said(**{path: "x"})
    assert mistake.startswith(f"{path}: nothing like this may be here")


@pytest.mark.parametrize("path", ["display.txt", "bundle.yaml", "py311/Pipfile"])
def test_missing_files_are_named(path: str) -> None:
    assert said(**{path: None}) and all(path in mistake for mistake in said(**{path: None}))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("extends: minimal\nonly: []\n", 2),
        ("extends: minimal\nextends: other\n", 2),
        ("extends: ../../etc\n", 1),
        ("extends: &a minimal\n", 1),
        ("", 1),
    ],
)
def test_its_config_says_what_it_extends_and_nothing_else(text: str, line: int) -> None:
    assert any(mistake.startswith(f"bundle.yaml:{line}: ") for mistake in said(**{"bundle.yaml": text}))


@pytest.mark.parametrize(
    "entry",
    [
        'six = {git = "https://example.org/six"}',
        'six = {path = "/etc"}',
        'six = {file = "https://example.org/six.tar.gz"}',
        'six = {version = "*", index = "other"}',
        'six = "@ https://example.org/six.whl"',
        'six = "--index-url https://example.org"',
        'six = ""',
        "six = 1",
        '"six; import os" = "*"',
        '"--find-links" = "*"',
        'six = {version = "*", editable = true}',
    ],
)
def test_packages_are_names_with_versions(entry: str) -> None:
    [mistake] = said(**{"py311/Pipfile": f"[packages]\n{entry}\n"})
    assert mistake.startswith("py311/Pipfile:2: ")


@pytest.mark.parametrize(
    "section", ["[[source]]\nurl = 'x'", "[scripts]\na = 'b'", "[pipenv]\nx = 1", "[builder]\na = 'b'"]
)
def test_no_other_section_of_a_pipfile(section: str) -> None:
    [mistake] = said(**{"py311/Pipfile": f"[packages]\n{section}\n"})
    assert mistake.startswith("py311/Pipfile:2: ")


def test_what_is_no_text_or_too_long_is_refused() -> None:
    assert said(**{"display.txt": b"\xff\xfe"}) and said(**{"os/os-packages.txt": "x" * 200_000})
    assert said(**{"py311/Pipfile": "[packages\n"})


@pytest.mark.parametrize("text", ["RUN true", "run a \\\n  b", "ENV A=b C=d", "# x\n\nRUN a", 'RUN ["a", "--b"]'])
def test_run_and_env_are_instructions_of_ones_own(text: str) -> None:
    assert [*recipe.instructions(text)] == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("COPY a b", 1),
        ("ADD https://169.254.169.254/ /x", 1),
        ("FROM other", 1),
        ("RUN a\nUSER 0\nVOLUME /x", 2),
        ("RUN --mount=type=bind,source=/,target=/host ls /host", 1),
        ("RUN --network=host true", 1),
        ("RUN --security=insecure true", 1),
        ("RUN \\\n --mount=type=secret,id=a true", 2),
        ("RUN a \\\n# comment\nADD b c", 3),
        ("RUN a \\\n\nADD b c", 3),
        ("# comment \\\nADD b c", 2),
        ("RUN a \\ \nADD b c", 2),
        ("RUN cat <<EOF\nCOPY a b\nEOF", 1),
        ("RUN a \r\nADD b c", 1),
        ("RUN a\x0bADD b c", 1),
        ("ONBUILD RUN a", 1),
        ("ARG A=b", 1),
        ("RUNx a", 1),
    ],
)
def test_instructions_that_reach_further_are_refused(text: str, line: int) -> None:
    assert line in [mistake.line for mistake in recipe.instructions(text)]


def test_all_mistakes_of_all_files_are_told_at_once() -> None:
    wrong = {
        "bundle.yaml": "extends: minimal\nrelease: 1\n",
        "py311/Pipfile": '[packages]\nsix = {git = "https://example.invalid"}\n\n[[source]]\nurl = "x"\n',
        "custom/custom.snippet.j2": "RUN true\nCOPY a b\n",
    }
    told = [mistake.partition(": ")[0] for mistake in said(**wrong)]
    assert told == ["bundle.yaml:2", "custom/custom.snippet.j2:2", "py311/Pipfile:2", "py311/Pipfile:4"]
    template = {**wrong, "custom/custom.snippet.j2": "{% if true %}\nCOPY a b\n{% endif %}\n"}
    assert not any("custom" in mistake for mistake in said(**template)), "it is rendered first"
