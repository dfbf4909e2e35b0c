"""The table of what a release ships."""

from __future__ import annotations

import json

import pytest

from flows.core.errors import RefitError
from flows.images.manifests import Manifest
from flows.releases.image_table import END, MARK, Shipped, markdown, table, within


def image(*layers: str) -> Manifest:
    parts = [{"digest": digest, "size": 2_000_000} for digest in layers]
    content = json.dumps({"config": {"digest": "c", "size": 500_000}, "layers": parts})
    return Manifest("sha256:0", "", content.encode())


def test_layers_count_as_shared_that_another_image_has() -> None:
    images = {"a": image("base", "x"), "b": image("base", "y", "z"), "c": image("alone")}
    rows = table(images, dict.fromkeys(images, 7), {"a": 1.0, "b": 2.4, "c": 0.0})
    assert [(row.profile, row.layers, row.shared) for row in rows] == [("a", 2, 1), ("b", 3, 1), ("c", 1, 0)]
    assert rows[1].cells == ("b", "6 MB", "7", "3", "1", "2 s", "yes")


def test_what_is_missing_is_told() -> None:
    rows = [Shipped("later"), Shipped("never", problem="It takes a | pipe:\n  no way.")]
    assert markdown(rows).splitlines()[2:] == [
        "| later |  |  |  |  |  | not built yet |",
        "| never |  |  |  |  |  | no: It takes a / pipe: no way. |",
    ]


def test_what_only_a_folder_of_wheels_has_is_shown() -> None:
    assert Shipped("torch", 2_000_000, from_folders=("torch 2.13.0+cpu",)).cells[-1] == (
        "yes; torch 2.13.0+cpu from a folder of wheels"
    )


def test_a_table_comes_between_its_marks_each_time_anew() -> None:
    text = f"before\n{MARK}\nold\n{END}\nafter\n"
    once = within(text, "| new |\n")
    assert once == f"before\n{MARK}\n\n| new |\n\n{END}\nafter\n"
    assert within(once, "| new |\n") == once
    with pytest.raises(RefitError, match="no place"):
        within("before\n", "| new |\n")
