"""The program that copies and compares homes beside sessions in a cluster, on folders of this machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flows.sessions.kubernetes import home_program
from flows.sessions.kubernetes.home_program import FAILED, LINK, MISSING, THERE
from tests.support.processes import in_a_process


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with all that people have in one."""
    home = tmp_path / "home"
    (home / "a folder" / "deep").mkdir(parents=True)
    (home / "a folder" / "data.csv").write_text("1,2\n")
    (home / "script").write_text("echo\n")
    (home / "script").chmod(0o750)
    os.link(home / "script", home / "same")
    (home / "link").symlink_to("../outside")
    (home / os.fsdecode(b"no text \xff\n")).write_text("x")
    (home / "read-only").mkdir()
    (home / "read-only" / "module.go").write_text("package x")
    (home / "read-only").chmod(0o555)
    with (home / "holes").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"in the middle")
    os.mkfifo(home / "pipe")
    os.utime(home / "script", ns=(5, 123456789123456789))
    return home


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    """All that must be the same in a copy."""
    told: dict[str, tuple[object, ...]] = {}
    for path, status in home_program.below(str(top)):
        whole = top / path
        content = str(whole.readlink()) if stat.S_ISLNK(status.st_mode) else None
        if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20:
            content = whole.read_text()
        told[path] = (status.st_mode, status.st_mtime_ns, status.st_nlink * (not stat.S_ISDIR(status.st_mode)), content)
    return told


def differences(
    one: Path, other: Path, *patterns: str, capsys: pytest.CaptureFixture[str], contents: str = "1"
) -> list[str]:
    assert home_program.main("differences", str(one), str(other), contents, *patterns) == 0
    return capsys.readouterr().out.splitlines()


def test_a_copy_has_all_and_a_second_one_does_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    for _ in range(2):
        assert home_program.main("mirror", str(home), str(copy)) == 0
        assert seen(copy) == seen(home) and (copy / "holes").stat().st_blocks < 1000
    numbers = {path: os.lstat(copy / path).st_ino for path, _ in home_program.below(str(copy))}
    assert home_program.main("mirror", str(home), str(copy)) == 0
    assert {path: os.lstat(copy / path).st_ino for path, _ in home_program.below(str(copy))} == numbers
    assert differences(home, copy, capsys=capsys) == []


def test_whatever_became_of_a_home_it_goes_back(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    home_program.main("mirror", str(home), str(copy))
    before = seen(home)
    (home / "script").unlink()
    (home / "script").mkdir()
    (home / "script" / "more").write_text("x")
    (home / "a folder" / "data.csv").write_text("3,4\n")
    os.utime(home / "a folder" / "data.csv", ns=(0, os.lstat(copy / "a folder" / "data.csv").st_mtime_ns))
    (home / "link").unlink()
    (home / "link").write_text("no link")
    (home / "locked").mkdir()
    (home / "locked" / "inside").write_text("x")
    (home / "locked").chmod(0o000)
    (home / "same").chmod(0o600)
    told = differences(home, copy, capsys=capsys)
    assert {"changed: script/", "new: script/more", "changed: a folder/data.csv", "changed: link"} <= {*told}
    assert "changed: a folder/data.csv" not in differences(home, copy, capsys=capsys, contents="0")
    (home / "a folder" / "data.csv").touch()  # as with rsync, what has the same size and time counts as the same
    for _ in range(2):
        assert home_program.main("mirror", str(copy), str(home)) == 0
        assert seen(home) == before


def test_what_an_ide_writes_may_differ(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    home_program.main("mirror", str(home), str(copy))
    (home / ".local" / "share" / "jupyter").mkdir(parents=True)
    (home / ".local" / "share" / "jupyter" / "runtime").write_text("x")
    (home / ".cache-of-mine").write_text("x")
    assert differences(home, copy, "/.local/share/jupyter/", "/.cache/", capsys=capsys) == ["new: .cache-of-mine"]
    assert differences(home, copy, "/.local/share/*/", "/.cache-*", capsys=capsys) == []
    assert differences(home, copy, "/**/runtime", capsys=capsys)[-1] == "new: .local/share/jupyter/"


def test_no_name_of_a_file_breaks_the_lines(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    told = differences(home, tmp_path / "empty", capsys=capsys)
    assert len(told) == len(seen(home)) and all(line.isprintable() for line in told)


def test_single_files_come_back_over_no_link(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    home_program.main("mirror", str(home), str(copy))
    outside.mkdir()
    (copy / "way").symlink_to(outside)
    (outside / "secret").write_text("x")
    assert home_program.main("look", str(copy), "way/secret") == LINK
    assert home_program.main("bring", str(copy), str(home), "", "missing", "script") == MISSING
    assert capsys.readouterr().err.split() == ["way/secret", "missing"]
    (home / "a folder").rename(home / "elsewhere")
    (home / "a folder").symlink_to(outside)
    assert home_program.main("bring", str(copy), str(home), ".now", "a folder/data.csv", "script") == 0
    assert (home / "a folder" / "data.csv").read_text() == "1,2\n" and not (outside / "data.csv").exists()
    assert not (home / "script.now").exists()  # it was the same
    assert home_program.main("beside", str(home), "script") == THERE


def test_the_size_counts_what_is_taken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert home_program.main("size", str(home)) == 0
    taken, files = map(int, capsys.readouterr().out.split())
    assert 4096 <= taken < 1 << 20 and files == len(seen(home)) - 1  # a file with two names is one


@pytest.mark.skipif(os.geteuid() != 0, reason="nothing but root can become somebody else")
def test_a_file_that_its_own_user_cant_read_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    copy.mkdir()
    (home / "locked").write_text("x")
    (home / "locked").chmod(0)
    for each in (home, copy, home / "locked"):
        os.chown(each, 234_567, 0)
    tmp_path.chmod(0o755)

    def as_user() -> None:
        """The user reaches the folders as in a Pod: not by their paths, which lead through root's."""
        os.chdir(home)
        os.setuid(234_567)
        sys.exit(home_program.main("mirror", ".", "../copy"))

    process = in_a_process(as_user)
    process.join()
    assert process.exitcode == home_program.UNREADABLE
    assert capfd.readouterr().err.strip() == "locked" and not (copy / "locked").exists()


def test_more_folders_in_each_other_than_python_has_calls_are_copied(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    deep = "/".join("d" * (sys.getrecursionlimit() + 100))
    try:
        subprocess.run(["mkdir", "-p", f"{home}/{deep}"], check=True)
        words = [sys.executable, home_program.__file__, "mirror", str(home), str(copy)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr[-300:]) == (0, "")
        assert (copy / deep).is_dir()
    finally:  # pytest can't
        subprocess.run(["rm", "-rf", home, copy], check=True)


def test_a_disk_that_fails_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "file").touch()
    assert home_program.main("mirror", str(tmp_path / "home"), str(tmp_path / "file")) == FAILED
    assert capsys.readouterr().err == f"File exists: {tmp_path / 'file'}\n"
