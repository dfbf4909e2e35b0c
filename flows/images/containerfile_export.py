"""A profile's image as one plain Containerfile, of which `buildah build` alone makes the same files.

The instructions are those that Refit builds with. The files that Refit mounts at `/mnt` for them come from further
build stages of the same text: a stage's files are written there by printf, and uv is installed from its index.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from flows.core.errors import RefitError
from flows.images.builder.cache import NO_CACHES, apt_options
from flows.images.builder.context import BUILT, MOUNT
from flows.images.builder.stage_builder import bootstrap
from flows.images.containerfile import parts
from flows.images.grafting.configuration import TIMESTAMP
from flows.images.stages import WHEELS, Kind, Stage

# uv as Refit's own requirements pin it: there, and the hashes of its wheels for x86_64 and aarch64.
UV = "0.13.8"
UV_HASHES = (
    "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984",
    "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
)
# Where a company mounts what its builds need: every base has that folder, and it is empty.
COMPANY = "/media"
_MOST = 60_000  # characters of one command: a line of a Containerfile and a word of Linux's can't be much longer
_WIDTH = 110  # columns of a comment
_EMPTY = f"{MOUNT}/empty"
_RESTORED = f"""\
# buildah removes the folder that it mounted over.
COPY --from=machine {_EMPTY}/ {MOUNT}/
"""
# Independent of the umask of those who build: COPY keeps modes, and a RUN may be somebody else's than root's.
_READABLE = f"RUN chmod -R u=rwX,go=rX {MOUNT}"
_BREAK = " \\\n    "
_CALLS_UV = f"{MOUNT}/uv "  # how instructions call uv


def containerfile(profile: str, release: str, chain: Sequence[Stage], base: str, *, secure: bool = True) -> str:
    """The Containerfile of a profile's image. Neither date nor label is in it.

    Args:
        profile: stem of its tags.
        release: name of the release that ships it.
        chain: the stages of its image, base first.
        base: the base's image, as `registry/repository@digest`.
        secure: whether its registry is spoken to by https.

    Raises:
        RefitError: a stage adds files in a way that only a build context can.
    """
    first, *further = chain
    every = [part for stage in further for part in (stage.wheels, stage) if part]
    parts = [
        _head(profile, release, secure),
        _origin(first),
        _machine(base, any(_CALLS_UV in stage.text for stage in every)),
        *(_files(stage) for stage in every if stage.files and not stage.wheels),
        *_assembly(base, further),
        _RESTORED,
    ]
    return "\n".join(parts)


def _assembly(base: str, further: Sequence[Stage]) -> Iterator[str]:
    """The stages of wheels, then those of the image, one on the other."""
    for stage in further:
        if stage.wheels:
            yield from (f"FROM {base} AS {stage.wheels.name}\n", _instructions(stage.wheels), _files(stage))
    yield from (f"FROM {base}\n", *map(_instructions, further))


def _head(profile: str, release: str, secure: bool) -> str:
    options = f"--timestamp {TIMESTAMP}" + ("" if secure else " --tls-verify=false")
    return f"""\
# The image of {profile} in release {release}. Any buildah from 1.28 on builds it, in an empty folder:
#
#   buildah build {options} --tag {profile} --file Containerfile .
#
# The files are those of the published image, byte by byte. Labels and history are not, and without --timestamp neither
# are the dates of files: no Containerfile can set them.
#
# An index, authorities or proxies of your own: let a folder have a file env.sh, e.g. with the line
#
#   export SSL_CERT_FILE={COMPANY}/ca.pem PIP_CERT={COMPANY}/ca.pem UV_DEFAULT_INDEX=https://index.example/simple
#
# and add --volume FOLDER:{COMPANY}:ro to the command. Nothing of that folder stays in the image.
"""


def _origin(base: Stage) -> str:
    """How the base came about, as a comment."""
    origin = base.image or "scratch"
    comment = f"The base is {base.name}. It was made of\n\nFROM {origin}\n{base.text}"
    if base.kind is Kind.bootstrap:
        argv = _BREAK.join(_wrapped(bootstrap(base, "base.tar", "sources.list")))
        comment += f"\nwhere base.tar came from\n\nSOURCE_DATE_EPOCH={TIMESTAMP} {argv}\n\n"
        comment += "and sources.list named the suite, its updates and its security updates."
    return "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())


def _wrapped(argv: Sequence[str]) -> Iterator[str]:
    """Words for a shell; the packages of an `--include` are spread over several."""
    for word in argv:
        if not word.startswith("--include="):
            yield shlex.quote(word)
            continue
        packages = word.removeprefix("--include=").replace(",", " ")
        for line in textwrap.wrap(packages, _WIDTH, break_long_words=False, break_on_hyphens=False):
            yield f"--include={line.replace(' ', ',')}"


def _machine(base: str, with_uv: bool) -> str:
    """The stage that has at `/mnt` what builds need of the machine."""
    variables = {"APT_CONFIG": f"{MOUNT}/apt.conf", "NPM_CONFIG_CACHE": f"{MOUNT}/npm", **NO_CACHES}
    exports = "".join(f"export {name}={value}\n" for name, value in sorted(variables.items()))
    environment = f"{exports}if [ -e {COMPANY}/env.sh ]; then . {COMPANY}/env.sh; fi\n"
    apt = "".join(f"{line}\n" for line in apt_options(MOUNT))
    lines = [
        f"FROM {base} AS machine",
        f"RUN mkdir {MOUNT}/apt {MOUNT}/files {_EMPTY}",
        *_written(f"{MOUNT}/env.sh", environment.encode()),
        *_written(f"{MOUNT}/apt.conf", apt.encode()),
    ]
    if with_uv:
        pinned = " ".join([f"uv=={UV}", *(f"--hash=sha256:{digest}" for digest in UV_HASHES)])
        lines += [*_written("/tmp/uv.txt", f"{pinned}\n".encode()), _INSTALL_UV]
    return "\n".join([*lines, _READABLE]) + "\n"


_INSTALL_UV = f"""\
RUN . {MOUNT}/env.sh; set -eu; \\
    python3 -m venv /tmp/uv; \\
    /tmp/uv/bin/pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \\
        -r /tmp/uv.txt; \\
    cp /tmp/uv/bin/uv {MOUNT}/uv"""


def _files(stage: Stage) -> str:
    """The stage that also has a stage's files."""
    paths = {f"{MOUNT}/files/{path}": content for path, content in stage.files.items()}
    folders = sorted({shlex.quote(str(PurePosixPath(path).parent)) for path in paths})
    lines = [f"FROM machine AS {_source(stage)}", f"RUN mkdir -p {' '.join(folders)}"]
    for path, content in paths.items():
        lines += _written(path, content)
    if stage.wheels:
        lines.append(f"COPY --from={stage.wheels.name} {WHEELS}/ {MOUNT}/{BUILT}/")
    return "\n".join([*lines, _READABLE]) + "\n"


def _source(stage: Stage) -> str:
    """Which build stage holds what a stage's instructions need."""
    return f"files-of-{stage.name}" if stage.files else "machine"


def _written(path: str, content: bytes) -> Iterator[str]:
    """The instructions that write a file: readable where it is text."""
    lines = _text(content)
    commands = _decoded(content) if lines is None else _printed(lines)
    for number, command in enumerate(list(commands) or [":"]):
        yield f"RUN {command} {'>>' if number else '>'} {shlex.quote(path)}"


def _text(content: bytes) -> Sequence[str] | None:
    """The lines of a file that can stand in an instruction as they are; none: they can't."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")
    if lines.pop() or "<<" in text:  # its last line has no end; newer builders take it for a here-text
        return None
    plain = all(line.replace("\t", "").isprintable() and len(line) < _MOST for line in lines)
    return lines if plain else None


def _printed(lines: Sequence[str]) -> Iterator[str]:
    """Commands that print lines, each of a length that a shell takes."""
    words: list[str] = []
    size = 0
    for word in map(_quoted, lines):
        if words and size + len(word) > _MOST:
            yield _together("printf '%s\\n'", words)
            words, size = [], 0
        words.append(word)
        size += len(word) + len(_BREAK)
    if words:
        yield _together("printf '%s\\n'", words)


def _quoted(line: str) -> str:
    return f'"{line}"' if "'" in line and not set(line) & set('"$`\\') else shlex.quote(line)


def _decoded(content: bytes) -> Iterator[str]:
    """Commands that print any content."""
    for start in range(0, len(content), _MOST // 2):
        code = base64.b64encode(content[start : start + _MOST // 2]).decode()
        lines = [code[at : at + _WIDTH] for at in range(0, len(code), _WIDTH)]
        yield f"{_together('printf %s', lines)} | base64 -d"


def _together(command: str, words: Sequence[str]) -> str:
    return _BREAK.join([command, *words])


def _instructions(stage: Stage) -> str:
    """A stage's instructions, with what they need of the machine."""
    lines = (_plain(stage, part.text) for part in parts(stage.text))
    return "\n".join([f"# {stage.name}", *lines]) + "\n"


def _plain(stage: Stage, instruction: str) -> str:
    name, _, rest = instruction.lstrip().partition(" ")
    if name.upper() == "RUN":
        mount = f"--mount=type=bind,from={_source(stage)},source={MOUNT},target={MOUNT},rw"
        return f"RUN {mount}{_BREAK}{rest}"
    if name.upper() == "ADD" and stage.files:
        raise RefitError(
            f"The stage {stage.name!r} can't be shown as plain text.",
            why=f"{instruction.strip()!r} takes a file from a build context.",
            hint="let its recipe COPY the file, and unpack it in a RUN where it is an archive.",
        )
    return _copied(stage, instruction) if name.upper() == "COPY" else instruction


def _copied(stage: Stage, instruction: str) -> str:
    """A COPY that takes from the stage of its files what it would take from a build context."""
    whole = re.sub(r"\\[ \t]*\n", " ", instruction.strip())
    _, options, rest = re.split(r"^COPY\s+((?:--\S+\s+)*)", whole, maxsplit=1, flags=re.I)
    if "--from=" in options:
        return instruction
    words = json.loads(rest) if rest.startswith("[") else rest.split()
    paths = [*(f"{MOUNT}/files/{word.lstrip('/')}" for word in words[:-1]), words[-1]]
    written = json.dumps(paths) if rest.startswith("[") else " ".join(paths)
    return f"COPY --from={_source(stage)} {options}{written}"
