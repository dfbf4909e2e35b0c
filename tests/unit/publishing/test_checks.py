"""Checks of an image: its files (the probe, on a folder of the test's own), configuration and size."""

from __future__ import annotations

import os
import py_compile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pydantic import SecretStr

from flows.core.settings import Settings
from flows.publishing import checks, probe

MB = 10**6


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "lib" / "thing.py"
    path.parent.mkdir()
    path.write_text("answer = 42\n")
    return path


def stale(root: Path) -> list[str]:
    findings = probe.files({}, str(root))["stale"]
    assert isinstance(findings, list)
    return findings


def secrets(root: Path, **values: str) -> list[str]:
    findings = probe.files(values, str(root))["secrets"]
    assert isinstance(findings, list)
    return findings


# --- Compiled files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
@pytest.mark.parametrize("optimized", [0, 2])
def test_what_was_compiled_from_its_source_is_fine(
    tmp_path: Path, source: Path, mode: py_compile.PycInvalidationMode, optimized: int
) -> None:
    compiled = py_compile.compile(str(source), invalidation_mode=mode, optimize=optimized)
    assert compiled and stale(tmp_path) == []


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_a_source_that_was_changed_afterwards(
    tmp_path: Path, source: Path, mode: py_compile.PycInvalidationMode
) -> None:
    py_compile.compile(str(source), invalidation_mode=mode)
    source.write_text("answer = 43, or so\n")
    (finding,) = stale(tmp_path)
    assert finding.startswith("/lib/__pycache__/thing.cpython-311.pyc: its source has another ")


def test_a_time_that_a_layer_has_changed(tmp_path: Path, source: Path) -> None:
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    os.utime(source, (315_532_800, 315_532_800))
    assert stale(tmp_path) == ["/lib/__pycache__/thing.cpython-311.pyc: its source has another time or size"]


def test_files_that_are_cut_short_or_of_another_python(tmp_path: Path, source: Path) -> None:
    compiled = Path(py_compile.compile(str(source)) or "")
    content = compiled.read_bytes()
    compiled.write_bytes(content[:9])
    assert stale(tmp_path) == ["/lib/__pycache__/thing.cpython-311.pyc: it is cut short"]
    compiled.write_bytes(b"\0\0\r\n" + content[4:])
    assert stale(tmp_path) == ["/lib/__pycache__/thing.cpython-311.pyc: it was compiled by another Python"]


def test_what_python_never_loads_can_not_be_stale(tmp_path: Path, source: Path) -> None:
    py_compile.compile(str(source))
    source.unlink()
    assert stale(tmp_path) == []


# --- Secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "seen"),
    [
        ("etc/environment", "PATH=/bin\nhttps_proxy=http://proxy:3128\n", "https_proxy="),
        ("etc/profile.d/corporate.sh", "export HTTP_PROXY=http://proxy\n", "HTTP_PROXY="),
        ("etc/apt/apt.conf.d/01proxy", 'Acquire::http::Proxy "http://proxy";\n', "Acquire::http::Proxy"),
        ("etc/apt/auth.conf", "machine mirror login me password it\n", "belongs to"),
        ("etc/pip.conf", "[global]\nindex-url = https://index\n", "index-url"),
        ("root/.config/pip/pip.conf", "[global]\nextra-index-url=https://index\n", "extra-index-url"),
        ("opt/app-root/pip.conf", "[global]\nproxy = http://proxy\n", "proxy"),
        ("root/.npmrc", "//npm.example/:_authToken=abc\n", "_authToken="),
        ("home/dev/.netrc", "machine index login me password it\n", "belongs to"),
        ("root/.docker/config.json", "{}", "belongs to"),
        ("root/.bash_history", "ls\n", "belongs to"),
        ("etc/ssh/ssh_host_ed25519_key", "key\n", "belongs to"),
        ("root/.ssh/id_rsa", "key\n", "belongs to"),
    ],
)
def test_files_with_secrets_or_proxies(tmp_path: Path, path: str, content: str, seen: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(content)
    (finding,) = secrets(tmp_path)
    assert finding.startswith(f"/{path}: {seen}")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("etc/environment", "PATH=/bin\nhttp_proxy=\n"),
        ("etc/apt/apt.conf.d/01autoremove", "APT::NeverAutoRemove { };\n"),
        ("etc/pip.conf", "[global]\ndisable-pip-version-check = true\n"),
        ("root/.bash_history", ""),
        ("etc/ssh/ssh_host_ed25519_key.pub", "public\n"),
        ("root/.profile", "export EDITOR=nano\n"),
    ],
)
def test_files_that_may_be_there(tmp_path: Path, path: str, content: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(content)
    assert secrets(tmp_path, password="correct horse") == []


def test_the_value_of_a_setting_in_any_file_is_found_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "library.bin").write_bytes(bytes(100_000) + b"correct horse" + bytes(10))
    assert secrets(tmp_path, password="correct horse") == ["/library.bin: holds password"]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read all files."""
    own = os.getresuid()
    if own[1] == 0:
        os.setresuid(checks.UID, checks.UID, 0)
    try:
        yield
    finally:
        os.setresuid(*own)


def test_what_may_not_be_read_is_named() -> None:
    with TemporaryDirectory() as place:  # each folder above one of pytest's own is closed to others
        root = Path(place, "image")
        for folder in ("etc", "root", "listed"):
            (root / folder).mkdir(parents=True)
        (root / "etc/shadow").write_text("key\n")
        (root / "listed/.netrc").write_text("machine index login me password it\n")
        (root / "etc/pip.conf").write_text("[global]\nindex-url = https://index\n")
        (root / "etc/link").symlink_to("shadow")
        modes = {"etc/shadow": 0o000, "root": 0o000, "listed": 0o444}
        for path, mode in modes.items():
            (root / path).chmod(mode)
        Path(place).chmod(0o755)
        with as_nobody():
            found = probe.files({}, str(root))
        for path in modes:
            (root / path).chmod(0o700)
        assert found["unread"] == ["/etc/shadow", "/listed/.netrc", "/root"]
        assert found["secrets"] == ["/etc/pip.conf: index-url"]
        assert probe.files({}, str(root))["unread"] == []


def test_a_link_is_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / ".netrc").symlink_to("/etc/hostname")
    assert secrets(tmp_path) == []


def test_all_secrets_of_the_settings_are_looked_for(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path,
        registry_password=SecretStr("registry-secret"),
        pip_index_url=SecretStr("https://me:index%20secret@index.example/simple"),
        npm_registry="https://me:short@npm.example",
        database_url="postgresql://me:database-secret@db/refit",
        apt_proxy="http://proxy.example:3142",
    )
    assert checks.secret_values(settings) == {
        "registry_password": "registry-secret",
        "the password of pip_index_url": "index secret",
        "the password of database_url": "database-secret",
        "apt_proxy": "http://proxy.example:3142",
    }


def test_secrets_in_the_configuration() -> None:
    history = [{"created_by": "RUN export PIP_INDEX_URL=https://x; HTTPS_PROXY=http://y make"}, {}]
    variables = [
        "http_proxy=http://p",
        "HTTP_PROXY=",
        "NPM_TOKEN=abc",
        "REFIT_TOKEN_FILE=/run/token",
        "A=correct horse",
    ]
    findings = checks.in_config({"config": {"Env": variables}, "history": history}, {"auth": "correct horse"})
    assert findings == [
        "environment: NPM_TOKEN",
        "environment: holds auth",
        "environment: http_proxy",
        "history: HTTPS_PROXY",
        "history: PIP_INDEX_URL",
    ]
    ordinary = {
        "config": {"Env": ["PATH=/bin", "LANG=C.UTF-8", "JUPYTER_PORT=8888"]},
        "history": [{"created_by": "RUN x"}],
    }
    assert checks.in_config(ordinary, {"auth": "correct horse"}) == []


# --- Modules --------------------------------------------------------------------------------------------------------


def distribution(site: Path, name: str, **files: str) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for path, content in files.items():
        (site / f"{path}.py").write_text(content)
    (folder / "RECORD").write_text("".join(f"{path}.py,,{len(content)}\n" for path, content in files.items()))


@pytest.mark.slow
def test_modules_are_known_by_metadata_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "Two_Names", first="", second="import no_such_module")
    distribution(tmp_path, "data")
    distribution(tmp_path, "fatal", deadly="import os; os.abort()")
    distribution(tmp_path, "fine", _private="raise SystemExit(1)", public="")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe.modules(["two-names", "data", "fatal", "fine", "absent"]) == {
        "absent": "it is not installed",
        "fatal": "import deadly: ended with -6",
        "two-names": "import second: ModuleNotFoundError: No module named 'no_such_module'",
    }


# --- Sizes ----------------------------------------------------------------------------------------------------------


def test_sizes_and_versions_of_packages(tmp_path: Path) -> None:
    distribution(tmp_path / "site-packages", "Some_Thing", one="x = 1", two="")
    distribution(tmp_path / "site-packages" / "bleach" / "_vendor", "html5lib", html="x")
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: tmux\nStatus: install ok installed\nInstalled-Size: 1073\nVersion: 1:3.3a-3\nDescription: it\n"
        " about Package: x\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nInstalled-Size: 9\nVersion: 2\n"
    )
    findings = probe.files({}, str(tmp_path))
    assert findings["sizes"] == {"deb/tmux": 1073 * 1024, "pypi/some-thing": 5}
    assert findings["packages"] == {"deb/tmux": "1:3.3a-3", "pypi/some-thing": "1.0"}


def test_of_a_package_that_is_there_twice_all_bytes_count_and_one_version(tmp_path: Path) -> None:
    for place in ("site-packages", "dist-packages"):
        distribution(tmp_path / place, "rich", one="x = 1")
    (tmp_path / "dist-packages" / "rich-1.0.dist-info").rename(tmp_path / "dist-packages" / "rich-2.0.dist-info")
    findings = probe.files({}, str(tmp_path))
    assert (findings["sizes"], findings["packages"]) == ({"pypi/rich": 10}, {"pypi/rich": "2.0"})


def test_an_image_may_grow_a_little() -> None:
    assert checks.size(104 * MB, 100 * MB, None, {}, {}).passed
    assert checks.size(90 * MB, 100 * MB, None, {}, {}).passed
    assert checks.size(104 * MB, None, None, {}, {}).passed


def test_who_is_responsible_for_growth_is_named_the_largest_first() -> None:
    old = {"pypi/rich": 5 * MB, "deb/tmux": MB, "deb/less": 9 * MB}
    new = {"pypi/rich": 6 * MB, "deb/tmux": MB, "pypi/torch": 700 * MB}
    findings = checks.size(200 * MB, 100 * MB, None, new, old)
    assert not findings.passed
    assert findings.seen.splitlines() == [
        "200.0 MB, 100% more than the image before",
        "  pypi/torch +700.0 MB",
        "  pypi/rich +1.0 MB",
        "To allow it, give the profile a `size_budget` in its release.",
    ]


def test_a_budget_allows_growth_up_to_it() -> None:
    sizes = {"pypi/torch": 700 * MB}
    within = checks.size(200 * MB, 100 * MB, 250 * MB, sizes, {"deb/tmux": MB})
    assert within.passed and "pypi/torch +700.0 MB" in within.seen
    over = checks.size(251 * MB, 250 * MB, 250 * MB, sizes, {})
    assert not over.passed
    assert over.seen == "251.0 MB, over its budget of 250.0 MB\n  pypi/torch 700.0 MB"
