"""A package index of one's own: made-up packages, served on loopback, for those who know the password."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

from tests.conftest import serving

USER, PASSWORD = "reader", "hush-hush"


def make_wheel(folder: Path, name: str, version: str, needs: Sequence[str] = ()) -> Path:
    """A wheel of an empty package that needs other packages."""
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {need}" for need in needs]
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    return path


def make_sdist(folder: Path, name: str, version: str) -> Path:
    """A package that is published as source only."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as sdist:
        for file, text in {
            "PKG-INFO": f"Name: {name}\n",
            "setup.py": "raise SystemExit('code of strangers')\n",
        }.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text)
            sdist.addfile(member, io.BytesIO(text.encode()))
    return path


@contextmanager
def serve_index(folder: Path) -> Iterator[str]:
    """Serve the packages in `folder/<name>/` as a simple index; gives its URL, with user and password."""
    for package in [path for path in folder.iterdir() if path.is_dir()]:
        write_page(package)
    with serving(partial(_Handler, directory=str(folder))) as port:
        yield f"http://{USER}:{PASSWORD}@127.0.0.1:{port}/simple"


def write_page(package: Path) -> None:
    """Write what the index says of the files in `package`."""
    page = package.parent / "simple" / package.name / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("".join(_link(file) for file in sorted(package.iterdir())))


def _link(file: Path) -> str:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f'<a href="/{file.parent.name}/{file.name}#sha256={digest}">{file.name}</a><br>\n'


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass
