"""A profile of a person's own: from their folder over a confined build to a session, and built again unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.authoring.own import reading
from flows.authoring.own.catalog import Wish
from flows.build_own_profile import build_own_profile
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.create_session import create_session
from flows.images.builder import confined
from flows.images.registry import Registry
from flows.publishing.own_profiles import OwnProfiles
from flows.releases.own_profiles import give
from flows.sessions.lifecycle import Sessions
from tests.support.machine import RegistryServer, private_home
from tests.support.page_catalog import write_catalog

LIMITS = PersonalBuilds(disk_gb=3.0, memory_gb=1.0, processes=256, minutes=20.0)
SECRET = "a-secret-that-nobody-hears"
NAME, PROFILE = "mine", "runtime-mine-deb12-py311"
FILES = {
    "display.txt": "Ada's own\n",
    "bundle.yaml": "extends: small\n",
    "py311/Pipfile": '[packages]\niniconfig = "~=2.0"\n\n[requires]\npython_version = "3.11"\n',
    "custom/custom.snippet.j2": (
        'ENV ADAS=yes\nRUN echo "of {{ bundle }}" >/etc/adas; id -u >>/etc/adas; \\\n'
        "    cat /proc/self/uid_map >>/etc/adas\n"
    ),
}


@pytest.fixture
def own(registry_server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    catalog = write_catalog(tmp_path / "catalog")
    more = {"catalog": catalog, "personal_builds": LIMITS, "metrics_token": SecretStr(SECRET)}
    with private_home(tmp_path / "home", registry_server.port, **more) as settings:
        if why := confined.obstacle(settings):
            pytest.skip(why)
        for module in ("build_own_profile", "create_session"):
            monkeypatch.setattr(f"flows.{module}.load_settings", lambda: settings)
        yield settings


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.long
def test_a_folder_of_ones_own_becomes_a_session(own: Settings, tmp_path: Path) -> None:
    files = reading.from_folder(write(tmp_path / "mine", FILES), 0)
    given = give(Wish(NAME, "ada", "runtime", "deb12", "2026a"), files, own)
    assert given.profile == PROFILE
    [image] = build_own_profile(NAME)
    registry = Registry(own)
    mine = f"{own.repository}/people/ada"
    assert registry.digest(mine, f"{PROFILE}_2026a") == image.digest
    assert not [tag for tag in registry.tags(own.repository) if "mine" in tag]
    assert OwnProfiles(Sessions.open(own).store.database).last_builds()[NAME].problem == ""
    session = create_session("ada", PROFILE)
    sessions = Sessions.open(own)
    try:
        assert session.image == image.digest
        said = sessions.execute("ada", ["cat", "/etc/adas"])
        assert said.startswith(f"of {NAME}\n0\n") and str(LIMITS.first_uid) in said
        sessions.execute("ada", ["/opt/app-root/bin/python", "-c", "import iniconfig, six"])
    finally:
        sessions.remove("ada", purge=True)
    [again] = build_own_profile(NAME)
    assert again.digest == image.digest and not again.new
