"""A captured bundle that is locked, built, and started on a copy of the home of the session that it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.authoring.capture.facts import Left, Reason, Source
from flows.catalog import load
from flows.compatibility.capture import Wish, capture, write
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.prove_capture import prove_capture
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import opened
from tests.support.page_catalog import write_catalog
from tests.support.variants import LIGHT, light

NAME, OLD, NEW = "pro", "page-small-deb12-py311", "page-mine-deb12-py311"
BY_HAND = """
site=work/.venv/lib/python3.11/site-packages
python3 -m venv --without-pip work/.venv && mkdir $site/iniconfig-2.1.0.dist-info && cd $site/iniconfig-2.1.0.dist-info
printf 'Metadata-Version: 2.1\\nName: iniconfig\\nVersion: 2.1.0\\n' >METADATA && touch REQUESTED
"""


@pytest.mark.long
def test_a_captured_bundle_is_proven_on_a_copy_of_the_home(
    registry_server: RegistryServer,
    shared: Settings,
    registry: Registry,
    base: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = write_catalog(tmp_path / "catalog")
    with private_home(tmp_path / "home", registry_server.port) as settings, opened(settings, NAME) as sessions:
        own = settings.model_copy(update={"catalog": catalog})
        for module in ("lock_requirements", "build_profiles", "prove_capture"):
            monkeypatch.setattr(f"flows.{module}.load_settings", lambda: own)
        session = sessions.create(NAME, OLD, "2026a", light(shared, registry, base, "proven"), LIGHT)
        sessions.execute(NAME, ["sh", "-euc", BY_HAND])
        call = ["exec", "--privileged", "--user", "0:0", session.container, "sh", "-c", "echo x >/etc/tool.conf"]
        command.run([*tools.podman(settings), *call], root=True)
        made = capture(own, NAME, Wish("mine", ("work/.venv",), ("/etc/tool.conf",)))
        write(made)
        assert load.profile(load.load_catalog(catalog), "2026a", NEW)
        before = [one.name for one in sessions.store.sessions()]
        asked = {"name": NAME, "bundle": "mine", "profile": NEW, "release": "2026a", "catalog": catalog}
        things = {"packages": [*made.capture.packages, "never"], "system": ["nowhere"], "files": ["/etc/tool.conf"]}
        proof = prove_capture(**asked, **things)
        assert proof.lost == (Left(Source.python, "never", Reason.lost), Left(Source.system, "nowhere", Reason.lost))
        assert [one.name for one in sessions.store.sessions()] == before
        assert sessions.that_runs(NAME).image == session.image != proof.image
