"""Images for a cluster with a small web server for an IDE: this machine's own shell and Python, put together in memory.

They run what looks into sessions and proves them, which is written in Python.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from flows.catalog.model import Access
from flows.core.programs import command
from tests.support.cluster import PROGRAMS, copy_image
from tests.support.machine import ROOT
from tests.support.tiny import tree
from tests.support.variants import WAITS

SERVER = Access(port=8000, health="/api", protocol="none")
LATE_SERVER = SERVER.model_copy(update={"late_home": True})
_ANSWER = 'mkdir -p "/tmp/www$NB_PREFIX" && cd /tmp/www && : >".$NB_PREFIX/api" && exec python3 -m http.server 8000'
_LEFT_OUT = re.compile(
    r"(^|/)(test|tests|idlelib|tkinter|ensurepip|lib2to3|turtledemo|site-packages|config-[^/]*)(/|$)"
)
_OF_LOGINS = ("/bin/bash", "/usr/sbin/sshd", "/usr/bin/sed", "/usr/bin/tr", "/usr/bin/env", "/usr/bin/readlink")
_MORE_PROGRAMS = ("/bin/mktemp", "/usr/bin/env", "/bin/chown", "/bin/date", "/usr/bin/sha256sum", "/usr/bin/find")


def push(name: str, before: str, folder: Path, *, late: bool = False, ssh: bool = False, **more: str) -> str:
    """Push an image that runs `before`, shell text, and then answers on port 8000; returns its digest.

    Args:
        name: its tag, and the text of its file `/etc/word`.
        before: it runs in the home.
        folder: for what is made on the way.
        late: its home may come late.
        ssh: it has an sshd for sessions, as images of the catalog have.
        more: labels, `io.refit.` before their names.
    """
    access = LATE_SERVER if late else SERVER
    script = f'echo {name} is running; {WAITS if late else "true"}; cd "$HOME"; {before}; {_ANSWER}'
    archive = folder / f"{name}.tar"
    config = {"Cmd": ["/bin/sh", "-c", script], "Env": ["PATH=/bin:/usr/bin"]}
    labels = {"io.refit.access": access.model_dump_json()}
    labels |= {f"io.refit.{label}": value for label, value in more.items()}
    layers = (_python(), *([_sshd()] if ssh else []), _layer_with("etc/word", f"{name}\n"))
    archive.write_bytes(_archive(name, layers, {**config, "Labels": labels}))
    return copy_image(f"docker-archive:{archive}", name, folder)


@cache
def _python() -> bytes:
    """A layer with a shell, and the Python that runs this."""
    interpreter = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    content = io.BytesIO(tree((*PROGRAMS, *filter(_is_there, _MORE_PROGRAMS))))
    with tarfile.open(fileobj=content, mode="a") as archive:
        archive.add(interpreter, "usr/bin/python3", recursive=False)
        for path in sorted({*_libraries(interpreter)}):
            archive.add(Path(path).resolve(), path.lstrip("/"), recursive=False)
        library = Path(sysconfig.get_path("stdlib"))
        archive.add(library, f"usr/lib/{library.name}", filter=_kept)
    return content.getvalue()


@cache
def _sshd() -> bytes:
    """A layer with what logins by ssh need of an image, with the configuration of the catalog."""
    configuration = (ROOT / "snippets/base/files/sshd_config").read_text(encoding="utf-8")
    return tree(_OF_LOGINS, {"etc/ssh/session_config": configuration})


def _layer_with(path: str, text: str) -> bytes:
    """A layer with one file, and a folder /tmp that everybody may write to."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        entry = tarfile.TarInfo("tmp")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(entry)
        entry = tarfile.TarInfo(path)
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


def _is_there(program: str) -> bool:
    return Path(program).exists()


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _LEFT_OUT.search(entry.name) else entry


def _libraries(program: Path) -> Iterator[str]:
    """The files that a program and Python's own modules are linked with, as far as the modules need no more."""
    modules = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    for each in (program, *modules.glob("*.so")):
        yield from re.findall(r"(/\S+) \(0x", command.run(["ldd", each]).stdout)


def _archive(name: str, layers: tuple[bytes, ...], config: Mapping[str, object]) -> bytes:
    """An image as `docker save` writes it."""
    files = {f"{number}.tar": layer for number, layer in enumerate(layers)}
    sums = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    told = {"architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": sums}}
    manifest = [{"Config": "config.json", "RepoTags": [f"localhost/tests:{name}"], "Layers": [*files]}]
    files |= {"config.json": json.dumps(told).encode(), "manifest.json": json.dumps(manifest).encode()}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()
