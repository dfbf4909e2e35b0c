from __future__ import annotations

import json
from typing import Any

import pytest

from flows.images.grafting.configuration import CREATED, Config, configured, instructions, written

PARENT: Config = {
    "created": CREATED,
    "architecture": "amd64",
    "os": "linux",
    "config": {
        "Env": ["PATH=/usr/bin:/bin", "HOME=/home/dev", "LANG=C.UTF-8"],
        "Cmd": ["base"],
        "WorkingDir": "/home/dev",
        "Labels": {"io.buildah.version": "1.28.2"},
    },
    "rootfs": {"type": "layers", "diff_ids": ["sha256:aa"]},
    "history": [{"created": CREATED, "created_by": "/bin/sh -c #(nop) ADD file:00 in / "}],
}


def on(text: str, parent: Config = PARENT) -> dict[str, Any]:
    return dict(configured(parent, text, "sha256:bb", origin="localhost/base"))


def inner(text: str) -> dict[str, Any]:
    return dict(on(text)["config"])


def test_a_new_path_of_the_parent_is_in_the_path_of_what_stands_on_it() -> None:
    patched = {**PARENT, "config": {**PARENT["config"], "Env": ["PATH=/new:/bin"]}}
    assert on("ENV PATH=/opt/bin:$PATH", patched)["config"]["Env"] == ["PATH=/opt/bin:/new:/bin"]


def test_what_a_stage_sets_comes_last_in_the_order_in_which_it_was_set_first() -> None:
    assert inner("ENV A=1 HOME=/root\nENV B=2 A=3")["Env"] == [
        "PATH=/usr/bin:/bin",
        "LANG=C.UTF-8",
        "A=3",
        "HOME=/root",
        "B=2",
    ]


def test_all_variables_of_one_instruction_see_the_values_from_before_it() -> None:
    assert inner("ENV A=1\nENV A=2 B=$A")["Env"][-2:] == ["A=2", "B=1"]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("plain", "plain"),
        ('"two words"', "two words"),
        ("'$HOME \"x\"'", '$HOME "x"'),
        ("two\\ words", "two words"),
        ("${HOME}/x$LANG", "/home/dev/xC.UTF-8"),
        ('"\\$HOME \\" \\n"', '$HOME " \\n'),
        ("${NOPE:-$HOME}", "/home/dev"),
        ("/lib${NOPE:+:$NOPE}", "/lib"),
        ("${HOME:+set}", "set"),
        ("x$NOPE", "x"),
        ("5$", "5$"),
        ("", ""),
    ],
)
def test_values_are_expanded(value: str, meant: str) -> None:
    assert inner(f"ENV X={value} Y=y")["Env"][-2:] == [f"X={meant}", "Y=y"]


def test_a_command_of_the_parent_ends_where_there_is_a_new_entry_point() -> None:
    assert "Cmd" not in inner('ENTRYPOINT ["x"]')
    assert inner('CMD ["y"]\nENTRYPOINT ["x"]')["Cmd"] == ["y"]
    assert inner("ENTRYPOINT x y\nCMD z")["Entrypoint"] == ["/bin/sh", "-c", "x y"]


def test_labels_ports_user_and_folder() -> None:
    result = inner("LABEL a=$HOME\nEXPOSE 80 81/udp\nEXPOSE 80/udp\nUSER 1001:0\nWORKDIR x/../y")
    assert result["Labels"] == {"io.buildah.version": "1.28.2", "a": "/home/dev"}
    assert result["ExposedPorts"] == {"80/tcp": {}, "81/udp": {}}
    assert (result["User"], result["WorkingDir"]) == ("1001:0", "/home/dev/y")


def test_the_history_names_the_new_parent_and_has_one_layer() -> None:
    text = "# note\nRUN a; \\\n  # why\n    b\nCOPY --chmod=0644 x /y\nUSER 1"
    history = on(text)["history"]
    assert [entry["created_by"] for entry in history[1:]] == [
        "/bin/sh -c a;     b",
        "/bin/sh -c #(nop) COPY --chmod=0644 x /y",
        "/bin/sh -c #(nop) USER 1",
    ]
    assert [entry.get("empty_layer", False) for entry in history] == [False, True, True, False]
    assert [entry.get("comment") for entry in history] == [None, None, None, "FROM localhost/base"]
    assert on(text)["rootfs"]["diff_ids"] == ["sha256:aa", "sha256:bb"]


def test_blanks_stay_in_the_history_and_at_the_end_of_a_folder_the_slash() -> None:
    result = on("RUN  a  \nWORKDIR /a/b/")
    assert result["history"][1]["created_by"] == "/bin/sh -c  a  "
    assert result["config"]["WorkingDir"] == "/a/b/"


def test_a_stage_without_a_layer_adds_none() -> None:
    result = configured(PARENT, "USER 1", None, origin="x")
    assert result["rootfs"]["diff_ids"] == ["sha256:aa"]
    assert result["history"][-1]["empty_layer"] is True


def test_the_parent_stays_as_it_is() -> None:
    before = json.dumps(PARENT)
    on("ENV A=1\nLABEL a=1\nEXPOSE 80\nCMD x\nUSER 1")
    assert json.dumps(PARENT) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "FROM scratch",
        "ARG A",
        "VOLUME /x",
        "ADD a /b",
        "ONBUILD RUN x",
        'SHELL ["/bin/bash"]',
        "HEALTHCHECK NONE",
        "STOPSIGNAL INT",
        "# escape=`\nUSER 1",
        "USER 1\r\nUSER 2",
        "# Escape=`\nUSER 1",
        "USER 1\nRUN a \\",
        "ENV",
        "ENV A",
        "ENV A=1 B",
        "ENV =1",
        "ENV A='1",
        'ENV A="1',
        "ENV A=${B%x}",
        "ENV A=${B:?x}",
        "ENV A=${B",
        "ENV A=$1",
        "ENV A=1\\",
        "USER $NOPE",
        "WORKDIR $NOPE",
        "EXPOSE http",
        "EXPOSE 80-90",
        'CMD ["a", ]',
        "CMD ['a']",
        "CMD []",
        "CMD --x y",
        "CMD [1]",
        'ENTRYPOINT ["a" "b"]',
        "COPY x",
        'COPY ["x"]',
        "RUN [ -d /x ] && y",
        "wat",
    ],
)
def test_what_is_not_known_for_sure_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        on(text)


@pytest.mark.parametrize("name", ["OnBuild", "Shell", "Healthcheck"])
def test_a_parent_whose_configuration_has_more_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        on("USER 1", {**PARENT, "config": {name: ["x"]}})


def test_lines_that_are_no_instructions_are_left_out() -> None:
    assert [step.name for step in instructions("\n  # a\n\nuser 1\n   RUN x\n")] == ["USER", "RUN"]


def test_it_is_written_as_go_writes_it() -> None:
    config = {**PARENT, "config": {"Labels": {"b": "<&>", "a": "é"}, "User": "1"}, "history": []}
    assert written(config).decode() == (
        '{"created":"1980-01-01T00:00:00Z","architecture":"amd64","os":"linux",'
        '"config":{"User":"1","Labels":{"a":"é","b":"\\u003c\\u0026\\u003e"}},'
        '"rootfs":{"type":"layers","diff_ids":["sha256:aa"]},"history":[]}'
    )
