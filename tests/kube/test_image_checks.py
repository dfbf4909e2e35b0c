"""Images are checked before they are published by programs in Pods that have no rights, and nothing of these stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings
from flows.publishing import checks
from flows.sessions import engines
from flows.sessions.kubernetes import manifests
from tests.support import cluster_images
from tests.support.cluster import NAMESPACE, Lab, kubectl
from tests.support.cluster_images import SERVER
from tests.support.cluster_moves import give_up_namespace, settings_for_cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]


@pytest.fixture(scope="module")
def settings(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    options = ClusterSettings(namespace=NAMESPACE, home_gb=1)
    settings = settings_for_cluster(tmp_path_factory.mktemp("checks") / "refit", kubernetes=options)
    # The bounds of a trial: as little as the image needs.
    yield settings.model_copy(update={"rehearsal_memory": 0.25, "ready_timeout_seconds": 20.0})
    give_up_namespace()


@pytest.fixture(autouse=True)
def nothing_is_left(settings: Settings) -> Iterator[None]:
    yield
    wait_until(lambda: not kubectl("get", "pods", "-l", f"{manifests.KIND}=trial", "-o", "name"))
    assert not [*settings.folder("rehearsals").iterdir()]


def pushed(settings: Settings, name: str, before: str, folder: Path) -> str:
    digest = cluster_images.push(name, before, folder)
    return f"docker://{settings.registry_host}/{settings.repository}@{digest}"


def checked(settings: Settings, image: str, packages: tuple[str, ...] = (), *, vouched: bool = True) -> checks.Report:
    look = engines.look_in_pods(settings)
    return checks.run(image, image, SERVER, packages, settings, look=look, vouched=vouched)


def test_an_image_that_answers_passes_once_for_all(settings: Settings, tmp_path: Path) -> None:
    image = pushed(settings, "check-passes", ":", tmp_path)
    report = checked(settings, image)
    assert report.passed, report.findings
    assert [finding.check for finding in report.findings] == ["ide", "pip", "imports", "stale", "secrets"]
    assert "Refit's own secrets: searched for in the configuration alone" in report.findings[-1].seen
    assert checked(settings, image) == report  # as it was written down


def test_what_is_wrong_is_found(settings: Settings, tmp_path: Path) -> None:
    image = pushed(settings, "check-lacks", ":", tmp_path)
    found = {each.check: each.seen for each in checked(settings, image, ("rich",)).findings if not each.passed}
    assert found == {"imports": "rich: it is not installed"}


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        ("echo broken >&2; exit 3", "broken"),
        ("echo slow >&2; sleep 600", "not 200 within 20 s"),
        ("echo loopback >&2; cd /tmp; : >api; exec python3 -m http.server 8000 --bind 127.0.0.1", "refused"),
    ],
    ids=["ends", "never answers", "answers on loopback alone"],
)
def test_an_image_whose_program_ends_or_never_answers_says_so(
    settings: Settings, tmp_path: Path, before: str, seen: str
) -> None:
    name = f"check-{before.split()[1]}"
    (finding,) = checked(settings, pushed(settings, name, before, tmp_path)).findings
    assert (finding.check, finding.passed) == ("ide", False) and seen in finding.seen


def test_its_programs_have_no_rights(settings: Settings, tmp_path: Path) -> None:
    bounds = "[print(line) for line in open('/proc/self/status') if line.startswith('CapBnd')]"
    tells = f'id -u; id -g; ls /var/run/secrets 2>&1 || true; python3 -c "{bounds}"; exit 1'
    (finding,) = checked(settings, pushed(settings, "check-tells", tells, tmp_path)).findings
    assert "65537\n0\n" in finding.seen and "CapBnd:\t0000000000000000" in finding.seen
    assert "kubernetes.io" not in finding.seen


def test_an_image_that_nobody_has_and_one_of_somebodys_own_are_not_started(settings: Settings) -> None:
    gone = f"docker://{settings.registry_host}/{settings.repository}@sha256:{'0' * 64}"
    with pytest.raises(RefitError):
        checked(settings, gone)
    with pytest.raises(RefitError, match="can't be checked in a cluster"):
        checked(settings, gone, vouched=False)
