"""Virtual environments in the home of a real session that moves onto another Python."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.compatibility import environments
from flows.compatibility.environments import remake
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import opened, to
from tests.support.package_index import make_wheel
from tests.support.variants import LIGHT, light

NAME = "eva"
# An environment over the image's packages, as docs/your-sessions.md makes it.
OVER_IMAGE = """
python3 -m venv --system-site-packages ENV
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >ENV/lib/python3.11/site-packages/image.pth
"""
FURNISH = f"""
mkdir -p wheels .config/pip project
printf '[global]\\nno-index = true\\nfind-links = /home/dev/wheels\\n' >.config/pip/pip.conf
while read -r name content; do echo "$content" | base64 -d >"wheels/$name"; done
{OVER_IMAGE.replace("ENV", "project/.venv")}
project/.venv/bin/python -m pip -q install bee==1.0.0 wasp
python3 -m venv --without-pip plain
# As if the image had had another Python until now.
for place in project/.venv plain; do mv $place/lib/python3.11 $place/lib/python3.10; done
site=project/.venv/lib/python3.10/site-packages
cp -r $site/bee-1.0.0.dist-info $site/own-2.0.dist-info
sed -i 's/^Name: .*/Name: own/; s/^Version: .*/Version: 2.0/' $site/own-2.0.dist-info/METADATA
echo '{{"url": "git+https://example.org/own"}}' >$site/own-2.0.dist-info/direct_url.json
rm wheels/bee-1.0.0* wheels/wasp*
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("environments") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=3.0) as settings:
        yield settings


@pytest.fixture
def sessions(settings: Settings) -> Iterator[Sessions]:
    with opened(settings, NAME) as sessions:
        yield sessions


@pytest.fixture
def session(sessions: Sessions, shared: Settings, registry: Registry, base: Built, tmp_path: Path) -> Session:
    wheels = [
        make_wheel(tmp_path, "bee", "1.0.0", ["ant"]),
        make_wheel(tmp_path, "bee", "1.1.0", ["ant"]),
        make_wheel(tmp_path, "ant", "2.0.0"),
        make_wheel(tmp_path, "wasp", "3.0.0"),
    ]
    image = light(shared, registry, base, "with environments")
    made = sessions.create(NAME, "light-minimal-deb12-py310", "2026a", image, LIGHT)
    lines = [f"{wheel.name} {base64.b64encode(wheel.read_bytes()).decode()}\n" for wheel in wheels]
    sessions.execute(NAME, ["sh", "-euc", FURNISH], stdin="".join(lines))
    return made


def test_an_environment_is_made_anew_of_what_was_asked_for_and_the_rest_is_told(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    executor, image = MoveExecutor.open(settings), light(shared, registry, base, "of another Python")
    result = executor.carry_out(
        to(sessions, NAME, image), "", lambda s: replace(s, profile="light-minimal-deb12-py311")
    )
    assert result.moved, result.reason
    (told,) = (
        e.note for e in executor.journal.entries(executor.journal.latest()[NAME]) if e.step == "clean" and e.note
    )
    assert "The environment project/.venv was made anew: 1 of 3 packages are there again; not there: wasp (" in told
    assert "own (it came from git+https://example.org/own)" in told
    assert "The old one is project/.venv.python3.10." in told
    seen = "import bee, ant, importlib.metadata as m; print(m.version('bee'))"  # what came along came along again
    assert sessions.execute(NAME, ["project/.venv/bin/python", "-c", seen]) == "1.1.0\n"
    kept = "project/.venv.python3.10/lib/python3.10/site-packages"
    assert "bee-1.0.0.dist-info" in sessions.execute(NAME, ["ls", kept])
    over = sessions.execute(NAME, ["sh", "-c", "cat project/.venv/lib/python3.11/site-packages/image.pth"])
    assert over.endswith("-packages\n")
    assert "system-site-packages = true" in sessions.execute(NAME, ["cat", "project/.venv/pyvenv.cfg"])
    assert remake(sessions.engine, sessions.store.session(NAME)) == ()  # once is enough


def test_what_is_in_the_way_and_links_leave_an_environment_as_it_was(sessions: Sessions, session: Session) -> None:
    sessions.execute(NAME, ["sh", "-euc", "echo mine >project/.venv.python3.10"])
    (remade,) = remake(sessions.engine, session)
    assert "is in the way" in remade.problem and "is still of Python 3.10" in str(remade)
    assert sessions.execute(NAME, ["cat", "project/.venv.python3.10"]) == "mine\n"
    assert "python3.10" in sessions.execute(NAME, ["ls", "project/.venv/lib"])


def test_an_attempt_that_is_killed_is_taken_up_again(
    sessions: Sessions, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(environments, "_install", kill)
        with pytest.raises(KilledError):
            remake(sessions.engine, session)
    sessions.execute(NAME, ["rm", "-r", "project/.venv/bin"])  # as if it had ended even before
    (remade,) = remake(sessions.engine, session)
    assert remade.there == {"bee": "1.1.0"} and not remade.problem
    sessions.execute(NAME, ["project/.venv/bin/python", "-c", "import bee, ant"])
    assert "bee-1.0.0.dist-info" in sessions.execute(
        NAME, ["ls", "project/.venv.python3.10/lib/python3.10/site-packages"]
    )
    assert remake(sessions.engine, session) == ()
