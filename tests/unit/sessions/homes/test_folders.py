"""Homes as folders: what is known of them, and by whom."""

from __future__ import annotations

from pathlib import Path

from flows.sessions.homes import folders
from flows.sessions.homes.folders import folder_of, ref_of

FLOWS = Path(__file__).parents[4] / "flows"


def test_a_folder_is_found_again_by_what_its_keeper_calls_it() -> None:
    assert folder_of(ref_of(Path("/homes/ana"))) == Path("/homes/ana")


def test_only_podmans_rooms_know_homes_as_folders() -> None:
    texts = {str(path.relative_to(FLOWS)): path.read_text(encoding="utf-8") for path in FLOWS.rglob("*.py")}
    knowing = {path for path, text in texts.items() if f"from {folders.__name__} import" in text}
    podmans = {path for path in knowing if path.startswith(("sessions/homes/", "sessions/containers/"))}
    assert podmans and knowing - podmans == {"cli/volume.py", "compatibility/scan.py", "sessions/reconfigure.py"}
