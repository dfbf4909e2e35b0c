"""A repository of rpm on loopback, with packages of one's own that hold nothing, signed with a key of one's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

_SPEC = """\
Name: {name}
Version: {version}
Release: 1.el9
Epoch: {epoch}
Summary: Nothing
License: MIT
BuildArch: noarch
{requires}
%description
Nothing.
%files
"""


@dataclass
class Repository:
    """A folder of packages, and where it is served."""

    folder: Path
    url: str
    key: str = ""

    def publish(self, name: str, version: str, *, requires: str = "", epoch: int = 0) -> None:
        """Add a package; `refresh` lets clients see it."""
        spec = self.folder.parent / f"{name}.spec"
        needs = f"Requires: {requires}" if requires else ""
        spec.write_text(_SPEC.format(name=name, version=version, epoch=epoch, requires=needs))
        before = set(self.folder.rglob("*.rpm"))
        self._run("rpmbuild", "-bb", *_define(_topdir=self.folder.parent / "rpmbuild", _rpmdir=self.folder), spec)
        if self.key:
            new = set(self.folder.rglob("*.rpm")) - before
            self._run("rpmsign", "--addsign", *_define(_gpg_name=self.key, __gpg="/usr/bin/gpg"), *new)

    def remove(self, name: str, version: str) -> None:
        """Take a package away; `refresh` lets clients see it."""
        [package] = self.folder.rglob(f"{name}-{version}-*.rpm")
        package.unlink()

    def refresh(self) -> None:
        """Write the lists of packages anew."""
        self._run("createrepo_c", "--quiet", self.folder)

    def make_key(self) -> Path:
        """Let packages be signed from now on; returns the public key."""
        public = self.folder / "key.asc"
        options = ["--batch", "--passphrase", "", "--quick-generate-key", "tests@refit.invalid", "rsa2048", "sign"]
        self._run("gpg", *options)
        listed = self._run("gpg", "--list-keys", "--with-colons")
        self.key = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        public.write_text(self._run("gpg", "--armor", "--export", self.key))
        return public

    def _run(self, *argv: object) -> str:
        home = self.folder.parent / "home"
        (home / ".gnupg").mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home)}
        words = [str(word) for word in argv]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


def _define(**macros: object) -> Iterator[str]:
    for name, value in macros.items():
        yield from ("--define", f"{name} {value}")


@contextmanager
def serve_repository(folder: Path) -> Iterator[Repository]:
    """Serve an empty repository below `folder`."""
    packages = folder / "packages"
    packages.mkdir(parents=True)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(packages)))
    repository = Repository(packages, f"http://127.0.0.1:{server.server_port}/")
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield repository
    finally:
        server.shutdown()
        server.server_close()
        repository._run("gpgconf", "--kill", "all")
