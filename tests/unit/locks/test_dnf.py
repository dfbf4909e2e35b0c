"""Output and options of dnf; the pure parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.catalog.model import Base, BaseConfig
from flows.core.documents import Mistakes, parse
from flows.core.settings import Settings
from flows.locks import dnf, freshness, system

KEY = "99DB70FAE1D7CE227FB6488205B555B38483C65D"
BASE = f"""\
family: rpm
suite: 9-stream
platform: el9
image: example.org/os@sha256:{"0" * 64}
pythons: [py39, py311]
python_packages: {{py311: [python3.11]}}
repositories:
  baseos:
    baseurl: https://mirror.example/$basearch/os/
    gpgkey: /etc/pki/rpm-gpg/key
    fingerprint: {KEY}
"""
TABLE = """\
Dependencies resolved.
================================================================================
 Package                Arch     Version                        Repo        Size
================================================================================
Installing:
 git                    x86_64   2.43.5-2.el9                   appstream   50 k
 openssh-server         x86_64   8.7p1-45.el9                   baseos     459 k
Installing dependencies:
 perl-Carp              noarch   1.50-460.el9                   appstream   30 k
 perl-Time-Local        noarch   2:1.300-7.el9                  appstream   34 k
 filesystem             x86_64   3.16-5.el9                     baseos     4.8 M
 nothing                noarch   1-1                            baseos       0  
Enabling module streams:
 nodejs                          18                                            

Transaction Summary
================================================================================
Install  6 Packages

Total download size: 5.4 M
Operation aborted.
"""


def config(text: str = BASE) -> BaseConfig:
    return parse(text, Path("base.yaml"), BaseConfig)


def test_a_transaction_names_each_package_exactly() -> None:
    assert dnf.planned(TABLE) == (
        "filesystem=0:3.16-5.el9.x86_64",
        "git=0:2.43.5-2.el9.x86_64",
        "nothing=0:1-1.noarch",
        "openssh-server=0:8.7p1-45.el9.x86_64",
        "perl-Carp=0:1.50-460.el9.noarch",
        "perl-Time-Local=2:1.300-7.el9.noarch",
    )


@pytest.mark.parametrize("output", ["", "Error: no", TABLE.replace("6 Packages", "7 Packages")])
def test_a_transaction_that_is_not_known_whole_does_not_count(output: str) -> None:
    assert dnf.planned(output) is None


def test_an_image_checks_what_it_installs_against_the_key_of_its_recipe() -> None:
    [(name, content)] = system.sources(Base("c9s", Path(), "A system", config(), ())).items()
    assert name == "files/dnf.conf"
    assert content.decode().splitlines() == [
        "[main]",
        "install_weak_deps=False",
        "reposdir=/dev/null",
        "varsdir=/dev/null",
        "tsflags=nodocs",
        "",
        "[refit-baseos]",
        "name=A system: baseos",
        "baseurl=https://mirror.example/$basearch/os/",
        "gpgcheck=True",
        "gpgkey=file:///etc/pki/rpm-gpg/key",
    ]


def test_nothing_is_asked_of_an_archive_of_debian(settings: Settings) -> None:
    base = Base("c9s", Path(), "A system", config(), ("tmux",))
    assert freshness.resolve(base, settings, lambda *_: ("tmux=0:1-1.noarch",)) == ("tmux=0:1-1.noarch",)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        (KEY, "8483C65D", 11, "fingerprint: String should match pattern"),
        ("    gpgkey: /etc/pki/rpm-gpg/key\n", "", 8, "repositories.baseos.gpgkey: this key is missing"),
        ("/etc/pki/rpm-gpg/key", "/etc/key; rm -rf /", 10, "gpgkey: String should match pattern"),
        ("https://mirror.example/$basearch/os/", "file:///etc/", 9, "baseurl: String should match pattern"),
        ("  baseos:", "  Base OS:", 8, "String should match pattern"),
        ("@sha256:", ":stream9-", 4, "image: String should match pattern"),
        ("py311: [python3.11]", "py312: [python3.12]", 1, "python_packages names py312, which pythons doesn't"),
        ("[python3.11]", "[--nogpgcheck]", 6, "python_packages.py311.0: String should match pattern"),
        ("9-stream", "9; reboot", 2, "suite: String should match pattern"),
        ("platform: el9\n", "", 1, "a base of the family rpm needs platform"),
        ("family: rpm", "family: deb", 1, "a base of the family deb has no image, platform, repositories"),
    ],
)
def test_a_mistake_in_a_base_is_found_where_it_is(old: str, new: str, line: int, what: str) -> None:
    assert old in BASE
    with pytest.raises(Mistakes) as caught:
        config(BASE.replace(old, new))
    [mistake] = caught.value.mistakes
    assert mistake.line == line
    assert what in mistake.what
