from pathlib import Path

import pytest

from flows.cli.settings import HIDDEN, lines, page
from flows.core import authorities, settings
from flows.core.documents import Mistakes
from flows.core.programs import program_output
from flows.core.settings import environment
from tests.support.certificates import make_authority
from tests.support.machine import ROOT


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in settings.Settings.model_fields:
        monkeypatch.delenv(f"REFIT_{name.upper()}", raising=False)
    monkeypatch.setenv("REFIT_HOME", str(tmp_path))
    return tmp_path


def test_defaults_are_on_loopback_and_below_the_home(home: Path) -> None:
    chosen = settings.load()
    assert chosen.registry_host == "127.0.0.1:5000" and not chosen.registry_is_secure
    assert chosen.bind_address == "127.0.0.1"
    assert chosen.database == f"sqlite:///{home}/refit.db"


def test_a_variable_wins_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "settings.yaml").write_text("registry_port: 5001\nprefect_port: 4300\n")
    monkeypatch.setenv("REFIT_REGISTRY_PORT", "5002")
    monkeypatch.setenv("REFIT_WHEEL_FOLDERS", "[/a, /b]")
    chosen = settings.load()
    assert (chosen.registry_port, chosen.prefect_port) == (5002, 4300)
    assert chosen.wheel_folders == (Path("/a"), Path("/b"))


def test_mistakes_in_file_and_variables_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "settings.yaml").write_text("registry_port: 5001\nprefect_prot: 4300\n")
    with pytest.raises(Mistakes) as error:
        settings.load()
    assert f"{home}/settings.yaml:2: prefect_prot: unknown key (did you mean 'prefect_port'?)" in str(error.value)
    (home / "settings.yaml").unlink()
    monkeypatch.setenv("REFIT_PREFECT_PORT", "many")
    with pytest.raises(Mistakes, match=r"mistake") as error:
        settings.load()
    assert "REFIT_PREFECT_PORT" in str(error.value)


def test_all_mistakes_of_file_and_variables_are_told_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "settings.yaml").write_text("registry_port: many\nprefect_prot: 4300\nhub: maybe\n")
    for name, text in {"PREFECT_PORT": "0", "SSH_PORTS": "{first", "MIGRATION": "{bake_minutes: many}"}.items():
        monkeypatch.setenv(f"REFIT_{name}", text)
    with pytest.raises(Mistakes) as error:
        settings.load()
    told = [(str(mistake.file), mistake.line) for mistake in error.value.mistakes]
    variables = [(f"REFIT_{name}", 0) for name in ("MIGRATION", "PREFECT_PORT", "SSH_PORTS")]
    assert sorted(told) == sorted([*((f"{home}/settings.yaml", line) for line in (1, 2, 3)), *variables])
    assert "REFIT_MIGRATION: bake_minutes: " in str(error.value)


def test_a_variable_takes_the_place_of_a_whole_table(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = "migration: {bake_minutes: 7, keep_hours: 3}\nregistry_port: 5000\nregistry: ''\n"
    (home / "settings.yaml").write_text(written)
    monkeypatch.setenv("REFIT_MIGRATION", "{bake_minutes: 8}")
    monkeypatch.setenv("REFIT_REGISTRY", "")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    chosen = settings.load()
    assert chosen.migration.model_dump(exclude_unset=True) == {"bake_minutes": 8}
    assert chosen.model_fields_set == {"migration", "registry_port", "registry"}, "also what is as it would be anyway"
    assert type(chosen) is settings.Settings


def test_a_mistake_does_not_repeat_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_NOTIFY", "[{hunter2-password: 3}]")
    with pytest.raises(Mistakes) as error:
        settings.load()
    assert "REFIT_NOTIFY" in str(error.value) and "hunter2" not in str(error.value)


def test_a_foreign_registry_is_spoken_to_by_https(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_REGISTRY", "registry.example.com")
    assert settings.load().registry_is_secure


def test_secrets_are_kept_out_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_REGISTRY_PASSWORD", "hunter2-password")
    chosen = settings.load()
    assert program_output.redacted("login hunter2-password") == "login ***"
    assert "hunter2-password" not in repr(chosen)


def test_what_can_not_be_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_SSH_PORTS", "{first: 1, last")
    with pytest.raises(Mistakes, match="mistake") as error:
        settings.load()
    assert "REFIT_SSH_PORTS: this is not valid YAML" in str(error.value)
    monkeypatch.delenv("REFIT_SSH_PORTS")
    monkeypatch.setenv("REFIT_CA_BUNDLE", "/no/such/file.pem")
    with pytest.raises(Mistakes) as missing:
        settings.load()
    assert "/no/such/file.pem" in str(missing.value)


def test_a_relative_path_starts_at_the_file_that_it_stands_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "company.pem").touch()
    (home / "settings.yaml").write_text("ca_bundle: company.pem\ncatalog: ../recipes\nwheel_folders: [wheels, /a]\n")
    results = []
    for folder in (home, Path("/")):
        monkeypatch.chdir(folder)
        results.append(settings.load())
    assert results[0] == results[1]
    assert results[0].ca_bundle == home / "company.pem"
    assert results[0].catalog.resolve() == home.parent / "recipes"
    assert results[0].wheel_folders == (home / "wheels", Path("/a"))


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("REFIT_CATALOG", "recipes"),
        ("REFIT_WHEEL_FOLDERS", "[/a, wheels]"),
        ("REFIT_CA_BUNDLE", "company.pem"),
        ("REFIT_DATABASE_URL", "sqlite:///refit.db"),
        ("REFIT_HOME", "refit"),
    ],
)
def test_a_relative_path_in_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(Mistakes) as error:
        settings.load()
    [mistake] = error.value.mistakes
    assert str(mistake.file) == variable and "is relative" in mistake.what


def test_a_database_with_a_whole_path_or_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("sqlite:////var/lib/refit.db", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg://host/refit"):
        monkeypatch.setenv("REFIT_DATABASE_URL", url)
        assert settings.load().database == url


@pytest.mark.parametrize("content", ["", "no certificate"])
def test_authorities_that_are_none_are_named(home: Path, content: str) -> None:
    (home / "ca.pem").write_text(content)
    with pytest.raises(Mistakes, match=r"ca\.pem.*can't be used"):
        authorities.authorities(settings.Settings(ca_bundle=home / "ca.pem"))


def test_authorities_are_read_once_unless_their_file_changes(home: Path) -> None:
    mine, other = (make_authority(home / name).bundle for name in ("mine", "other"))
    trusting = settings.Settings(ca_bundle=mine)
    result = authorities.authorities(trusting)
    assert authorities.authorities(trusting) is result
    mine.write_bytes(other.read_bytes())
    assert authorities.authorities(trusting).get_ca_certs(binary_form=True) != result.get_ca_certs(binary_form=True)


def test_a_copy_with_another_registry_is_not_asked_where_the_first_was(home: Path) -> None:
    first = settings.Settings()
    assert first.registry_host == "127.0.0.1:5000"
    other = first.model_copy(update={"registry_port": 5001, "registry_tls": True})
    assert (other.registry_host, other.registry_is_secure) == ("127.0.0.1:5001", True)


def test_addresses_of_messages_are_secret_and_reach_the_worker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "settings.yaml").write_text("notify: ['slack://one/two/three', 'json://127.0.0.1/hook']\n")
    written = settings.load()
    assert "three" not in repr(written)
    assert program_output.redacted("to slack://one/two/three") == "to ***"
    monkeypatch.setenv("REFIT_NOTIFY", environment.variables(written)["REFIT_NOTIFY"])
    (home / "settings.yaml").unlink()
    assert settings.load().notify == written.notify


def test_the_page_of_settings_is_that_of_the_model() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == page(), "run `refit settings --markdown > docs/settings.md`"


def test_every_setting_says_what_it_means() -> None:
    result = lines(settings.Settings)
    assert [line.name for line in result if not line.meaning] == []
    assert {"registry_port", "session_uids", "migration.unavailable.host", "migration.sessions.mode"} <= {
        line.name for line in result
    }


def test_what_is_set_here_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_REGISTRY_USER", "ann")
    monkeypatch.setenv("REFIT_REGISTRY_PASSWORD", "a-secret-of-the-registry")
    monkeypatch.setenv("REFIT_DATABASE_URL", "postgresql://ann:a-secret-of-the-database@127.0.0.1/x")
    monkeypatch.setenv("REFIT_NOTIFY", '["json://a-secret-of-a-chat"]')
    here = {line.name: line.here for line in lines(settings.load())}
    assert here["registry_user"] == "ann" and here["registry_password"] == HIDDEN and here["notify"] == [HIDDEN]
    assert "a-secret" not in str(here)
