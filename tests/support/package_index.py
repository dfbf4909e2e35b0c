"""A package index of one's own: made-up packages, served on loopback, for those who know the password."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

from tests.support.waiting import serving

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


STRANGE = {"setup.py": "raise SystemExit('code of strangers')\n"}
# A package with a small extension in C. Its build needs `ant`, and nothing that any real index has.
EXTENSION = {
    "pyproject.toml": """\
[build-system]
requires = ["ant>=1"]
build-backend = "backend"
backend-path = ["."]
""",
    "chopper.c": """\
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, __FILE__}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "chopper", NULL, -1, methods};
PyMODINIT_FUNC PyInit_chopper(void) { return PyModule_Create(&module); }
""",
    "backend.py": """\
import os, subprocess, sysconfig, time, zipfile

TAG = "cp" + sysconfig.get_python_version().replace(".", "")
TAG = f"{TAG}-{TAG}-{sysconfig.get_platform().replace('-', '_')}"
INFO = "chopper-1.0.dist-info"
FILES = {
    f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: chopper\\nVersion: 1.0\\n",
    f"{INFO}/WHEEL": f"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: {TAG}\\n",
    f"{INFO}/RECORD": "",
}

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    os.mkdir(f"{folder}/{INFO}")
    for name, text in FILES.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
    return INFO

def build_wheel(folder, config_settings=None, metadata_directory=None):
    import ant
    source = os.path.abspath("chopper.c")
    include = sysconfig.get_path("include")
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", f"-I{include}", source, "-o", "chopper.so"], check=True)
    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    name = f"chopper-1.0-{TAG}.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel, open("chopper.so", "rb") as module:
        for path, content in {"chopper.so": module.read(), **FILES}.items():
            wheel.writestr(zipfile.ZipInfo(path, date), content)
    return name
""",
}


def make_sdist(folder: Path, name: str, version: str, files: Mapping[str, str] = STRANGE) -> Path:
    """A package that is published as source only."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as sdist:
        for file, text in {"PKG-INFO": f"Name: {name}\n", **files}.items():
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


@contextmanager
def serve_dated_index(uploads: Mapping[Path, str]) -> Iterator[str]:
    """Serve packages, file → when it was uploaded (nothing: that isn't told), as an index in JSON; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").rpartition("/")[2]
            files = {file.name: file for file in uploads}
            if name in files:
                self.answer("application/octet-stream", files[name].read_bytes())
            else:
                entries = [_entry(file, time) for file, time in uploads.items() if file.name.startswith(f"{name}-")]
                page = {"meta": {"api-version": "1.1"}, "name": name, "files": entries}
                self.answer("application/vnd.pypi.simple.v1+json", json.dumps(page).encode())

        def answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}/simple"


def _entry(file: Path, time: str) -> dict[str, object]:
    entry = {"filename": file.name, "url": f"/{file.name}", "hashes": {"sha256": _digest(file)}}
    return {**entry, "upload-time": time} if time else entry


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
