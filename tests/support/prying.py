"""Run by a step of a build, with Python alone: looks for what it must not see of its builder, and fails if it sees any.

`prying.py FILE WORD…` looks for these words in the variables and files of processes, in its own variables, and where
Kubernetes puts the token of a Pod. Then it tries to leave its root by another chroot, and looks from there. FILE says
how many processes of others it has seen: none, where it couldn't have found anything.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TOKENS = ("var/run/secrets/kubernetes.io", "run/secrets/kubernetes.io")
MOST = 1 << 20


def processes() -> list[Path]:
    """The processes that it sees, without itself and those that it was started by in its root."""
    own = Path("/proc/self/root").stat()
    others = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_own = os.path.samestat((folder / "root").stat(), own)
        except OSError:  # it may not know
            is_own = False
        if not is_own:
            others.append(folder)
    return others


def seen(words: list[bytes], root: str) -> Iterator[str]:
    """The places that it sees which have one of the words in them, from this root."""
    for folder in processes():
        with suppress(OSError), (folder / "environ").open("rb") as file:
            content = file.read(MOST)
            yield from (f"{folder}/environ: {word!r}" for word in words if word in content)
        yield from (f"{folder}/root: {each}" for each in TOKENS if os.path.exists(folder / "root" / each))  # noqa: PTH110 - also where it may not look
    yield from (f"{root}{each}" for each in TOKENS if os.path.exists(f"{root}{each}"))  # noqa: PTH110


def leave() -> bool:
    """Try to leave the root of this process; whether another one was reached."""
    before = Path("/").stat()
    below = Path("/below")
    below.mkdir(exist_ok=True)
    try:
        os.chroot(below)
        for _ in range(32):
            os.chdir("..")
        os.chroot(".")
    except OSError:
        return False
    finally:
        with suppress(OSError):
            below.rmdir()
    return not os.path.samestat(before, Path("/").stat())


def main() -> None:
    """Look, and say what was seen."""
    file, words = Path(sys.argv[1]), [word.encode() for word in sys.argv[2:]]
    found = [f"variable {name}" for name in os.environ if any(word in name.encode() for word in words)]
    found += seen(words, "/")
    file.write_text(f"{len(processes())}\n", encoding="ascii")
    if leave():
        found += ["another root", *seen(words, "/")]
    if found:
        sys.exit("\n".join(("A step of a build sees:", *found)))


if __name__ == "__main__":
    main()
