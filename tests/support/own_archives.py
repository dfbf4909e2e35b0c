"""Recipes of people's own as they send them: good ones, and those of the worst neighbour."""

from __future__ import annotations

import base64
import io
import stat
import tarfile
import zipfile

RECIPE = {
    "display.txt": b"<b>Ada's</b> tools\n",
    "bundle.yaml": b"extends: minimal\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n\n[requires]\npython_version = "3.11"\n',
}


def tarred(*special: tarfile.TarInfo, **files: bytes) -> bytes:
    """A tar archive of files, and of members of other kinds before them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in special:
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def zipped(files: dict[str, bytes], kind: int = stat.S_IFREG, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of files, which says of all of them that they are of this kind."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in files.items():
            one = zipfile.ZipInfo(name)
            one.external_attr, one.compress_type = (kind | 0o644) << 16, method
            archive.writestr(one, content)
    return stream.getvalue()


def special(kind: bytes, name: str = "x", to: str = "") -> tarfile.TarInfo:
    """A member of a tar archive that is a link, a device or the like."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.devmajor, member.devminor = kind, to, 1, 3
    return member


def encoded(content: bytes) -> str:
    """As the API takes it."""
    return base64.b64encode(content).decode()
