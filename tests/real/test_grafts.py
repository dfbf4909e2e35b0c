"""Grafts are right or refused: each is compared byte for byte with a build."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.images.grafting.configuration import has_layer
from flows.images.grafting.layer_cache import Layers, NotCarried
from flows.images.manifests import Manifest
from flows.images.stages import Kind, Stage
from flows.signing.trust import Trust
from tests.support.workshop import PARENT, Workshop, workshop

__all__ = ["workshop"]

FILES = {
    "files/a": b"a\n",
    "files/b": b"b\n",
    "files/current/c": b"c\n",
    "files/deep/in/d": b"d\n",
    "files/app-root/e": b"e\n",
    "files/x": b"with a capability\n",
}
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service=ep
ROOT = f"""{PARENT}
RUN mkdir -p /opt/v1 /opt/v2 /opt/deep /srv /usr/local/bin; echo const >/usr/share/const; \\
    echo tool:x:5001: >/etc/group; echo root:x:0:0::/:/bin/sh >/etc/passwd; \\
    echo tool:x:5001:5001::/opt:/bin/sh >>/etc/passwd
"""
OTHER_TOOL = (
    "RUN echo tool:x:5002: >/etc/group; echo root:x:0:0::/:/bin/sh >/etc/passwd; "
    "echo tool:x:5002:5002::/:/bin/sh >>/etc/passwd"
)


@dataclass(frozen=True)
class Case:
    """One of the report's: an instruction on two parents, and whether its layer may go from one to the other."""

    name: str
    text: str
    old: str = ""
    new: str = ""
    carried: bool = False
    programs: bool = False


CASES = (
    Case("1a owner by name, another uid", "COPY --chown=tool:tool files/b /opt/tool-b", "", OTHER_TOOL),
    Case(
        "1b owner by number, a new user",
        "COPY --chown=5001:5001 files/b /opt/tool-b",
        "",
        "RUN echo new:x:7:7 >>/etc/passwd",
        carried=True,
    ),
    Case("1c owner by its number alone", "COPY --chown=5001 files/b /opt/tool-b", "", OTHER_TOOL),
    Case(
        "2a variables that only programs read", "COPY files/a /opt/a", "", "ENV PATH=/bin PYTHONPATH=/x", carried=True
    ),
    Case("2b a variable in the target", "COPY files/a $APPDIR/a", "ENV APPDIR=/opt/v1", "ENV APPDIR=/opt/v2"),
    Case("2c a variable in the source", "COPY files/$X /opt/x", "ENV X=a", "ENV X=b"),
    Case("3a a library is gone", "COPY files/a /opt/a", "RUN echo lib >/usr/share/lib", "", carried=True),
    Case("4a mode of a folder above", "COPY files/a /opt/v1/a", "", "RUN chmod 0775 /opt/v1"),
    Case("4b owner of a folder above", "COPY files/a /opt/v1/a", "", "RUN cat /bin/sh >/opt/v1/sh; chmod 0700 /opt/v1"),
    Case("5a a folder becomes a link", "COPY files/a /srv/f/a", "RUN mkdir /srv/f", "RUN ln -s /opt/v1 /srv/f"),
    Case(
        "5b a link leads elsewhere",
        "COPY files/a /opt/current/a",
        "RUN ln -s /opt/v1 /opt/current",
        "RUN ln -s /opt/v2 /opt/current",
    ),
    Case(
        "5c a link becomes a folder",
        "COPY files/a /opt/current/a",
        "RUN ln -s /opt/v1 /opt/current",
        "RUN mkdir /opt/current",
    ),
    Case("5d a link to a file", "COPY files/a /opt/l", "RUN ln -s /opt/v1/x /opt/l", "RUN ln -s /opt/v2/x /opt/l"),
    Case("5e a link below the target", "COPY files/ /opt/", "", "RUN ln -s /opt/v1 /opt/current"),
    Case(
        "5f the same link",
        "COPY files/a /srv/l/a",
        "RUN ln -s /opt/v1 /srv/l",
        "RUN ln -s ../opt/v1 /srv/l",
        carried=True,
    ),
    Case(
        "6b a program is shadowed",
        "RUN cat /usr/share/const >/opt/app-root/x",
        "",
        "RUN ln -s /bin/rm /usr/local/bin/cat",
        programs=True,
    ),
    Case("7a what is replaced is gone", "COPY files/a /opt/a", "RUN echo old >/opt/a", ""),
    Case("7b the target becomes a folder", "COPY files/a /opt/a", "", "RUN mkdir /opt/a"),
    Case("7c the target is a folder no more", "COPY files/a /opt/a", "RUN mkdir /opt/a", ""),
    Case(
        "8a configuration that is inherited",
        "COPY files/a /opt/a\nENV C=d",
        "",
        'ENTRYPOINT ["e"]\nCMD ["c"]\nUSER 7:7\nWORKDIR /opt/v2\nEXPOSE 99\nSTOPSIGNAL 9\nLABEL l=m\nVOLUME /data',
        carried=True,
    ),
    Case("8b a relative target", "COPY files/a rel/a", "WORKDIR /opt/v1", "WORKDIR /opt/v2"),
    Case("8c a folder that is to be made", "WORKDIR /srv/wk", "RUN mkdir /srv/wk", ""),
    Case("8d a relative folder", "WORKDIR x", "WORKDIR /opt/v1", "WORKDIR /opt/v2"),
    Case(
        "8e a health check and instructions for later",
        "COPY files/a /opt/a",
        "",
        'SHELL ["/bin/sh", "-ec"]\nHEALTHCHECK CMD true\nONBUILD RUN echo later',
        carried=True,
    ),
    Case("8f whose the folder is that is made", "WORKDIR /srv/wk", "USER 0:0", "USER 1001:1001"),
    Case("8g a program's user", "RUN echo x >/opt/app-root/x || true", "", "USER 1001:1001", programs=True),
    Case(
        "8h a program's folder", "RUN echo $PWD >/opt/app-root/x", "WORKDIR /opt/v1", "WORKDIR /opt/v2", programs=True
    ),
    Case("9a a file is shadowed", "COPY files/a /opt/a", "", "RUN echo new >/opt/a"),
    Case("9b a file in a folder that is copied", "COPY files /opt/f", "", "RUN mkdir /opt/f; echo new >/opt/f/a"),
    Case("9c a folder with another mode", "COPY files /opt/f", "", "RUN mkdir /opt/f; chmod 0700 /opt/f"),
    Case("10a extended attributes", "COPY files/x /opt/x", "", "RUN echo 1 >/usr/share/new", carried=True),
    Case(
        "10b hard links in the layer",
        "RUN echo x >/opt/app-root/x; ln /opt/app-root/x /opt/app-root/y",
        "",
        "RUN echo new >/usr/share/y",
        carried=True,
        programs=True,
    ),
    Case(
        "10c a hard link to a file below",
        "RUN ln /opt/app-root/p /opt/app-root/q",
        "RUN echo 1 >/opt/app-root/p",
        "RUN echo 2 >/opt/app-root/p",
        programs=True,
    ),
    Case(
        "11a a folder made anew",
        "RUN rm -r /opt/app-root; mkdir /opt/app-root",
        "",
        "RUN echo 1 >/opt/app-root/p",
        programs=True,
    ),
    Case(
        "11b a folder made anew, with a file below in both",
        "RUN rm -r /opt/app-root; mkdir /opt/app-root",
        "RUN echo 1 >/opt/app-root/p",
        "RUN echo 1 >/opt/app-root/p; echo 2 >/opt/app-root/q",
        programs=True,
    ),
    Case(
        "12b other variables for a program",
        "RUN echo $LC_ALL >/opt/app-root/x",
        "ENV LC_ALL=C",
        "ENV LC_ALL=C.UTF-8",
        programs=True,
    ),
    Case(
        "x1 a volume, and files below it",
        "COPY files/a /srv/vol/a",
        "RUN mkdir /srv/vol",
        "RUN mkdir /srv/vol\nVOLUME /srv/vol",
        carried=True,
    ),
    Case(
        "x2 a volume, and a program below it", "RUN echo x >/opt/app-root/x", "", "VOLUME /opt/app-root", programs=True
    ),
    Case(
        "nothing differs that counts",
        "COPY files/a /opt/a\nWORKDIR /opt/v1\nUSER 1001:0",
        "",
        "RUN echo 1 >/usr/share/new",
        carried=True,
    ),
)


@dataclass
class Bench:
    """Makes stages on parents, and carries what was made from one to another."""

    workshop: Workshop
    layers: Layers

    def stage(self, text: str, *, programs: bool) -> Stage:
        return Stage("top", Kind.closed, "below", text, FILES, writes=("/opt/app-root",) if programs else ())

    def made(self, stage: Stage, key: str, parent: Manifest) -> Manifest:
        """The image that a build gives, in the builder's shape."""
        return self.layers.keep(stage, _key(key), parent, self.workshop.build(stage.text, parent))

    def carried(self, stage: Stage, key: str, parent: Manifest) -> Manifest | None:
        try:
            return self.layers.carry(stage, _key(key), parent)[0]
        except NotCarried:
            return None


def _key(name: str) -> str:
    return sha256(name.encode()).hexdigest()


@pytest.fixture(scope="module")
def bench(workshop: Workshop) -> Iterator[Bench]:
    for path, content in FILES.items():
        file = workshop.context / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    os.setxattr(workshop.context / "files/x", "security.capability", CAPABILITY)
    (workshop.context / "files" / "start").unlink()
    database = open_database(workshop.settings.database)
    yield Bench(workshop, Layers(workshop.settings, workshop.registry, Trust(workshop.settings, database)))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_goes_to_another_parent_only_where_a_build_would_give_the_same(bench: Bench, case: Case) -> None:
    old, new = (bench.workshop.build(f"{ROOT}{more}") for more in (case.old, case.new))
    stage = bench.stage(case.text, programs=case.programs)
    assert bench.made(stage, case.name, old)
    carried = bench.carried(stage, case.name, new)
    assert (carried is not None) is case.carried
    if carried:
        assert carried == bench.made(stage, f"{case.name}, again", new)


# --- Whatever parents and instructions ------------------------------------------------------------------------------

PARENTS: Sequence[Sequence[str]] = (
    ("", "ENV APPDIR=/opt/v1", "ENV APPDIR=/opt/v2", "ENV APPDIR=rel"),
    ("", OTHER_TOOL, "RUN echo new:x:7:7 >>/etc/passwd"),
    ("", "RUN ln -s /opt/v1 /opt/current", "RUN ln -s v2 /opt/current", "RUN mkdir /opt/current"),
    ("", "RUN mkdir /srv/wk", "RUN mkdir -p /srv/wk/x; chmod 0700 /srv/wk", "RUN ln -s /opt/v2 /srv/wk"),
    ("", "RUN ln -s ../v1 /opt/deep/in", "RUN mkdir /opt/deep/in; echo 1 >/opt/deep/in/d"),
    ("", "RUN mkdir /opt/a", "RUN echo old >/opt/a", "RUN ln -s /opt/v1/a /opt/a"),
    ("", "RUN echo 1 >/usr/share/new", "RUN rm /usr/share/old/a"),
    ("", "VOLUME /opt/v1", "LABEL x=y", "EXPOSE 99"),
    ("", "RUN ln -s /bin/sh /usr/local/bin/own", "ENV PATH=/bin:/usr/bin"),
    ("", "WORKDIR /opt/v1", "WORKDIR /srv/w"),
    ("", "USER 1001:1001", "USER tool", "USER 0:0"),
)
COPIES = (
    *("COPY files/a /opt/a", "COPY files/a $APPDIR/a", "COPY files/a /opt/current/a", "COPY files /opt"),
    *(
        "COPY files/b rel/b",
        "COPY files/b .",
        "COPY --chown=tool:tool files/b /opt/t",
        "COPY --chown=5:6 files/b /opt/t",
    ),
    *("COPY --chown=tool files/ /srv/wk/", "COPY files/deep /opt/deep", "COPY --chmod=0600 files/a files/b /srv/wk/"),
    *("WORKDIR /srv/wk", "WORKDIR x", "WORKDIR $APPDIR", "WORKDIR /opt/current/new", "USER 1001:1001", "USER tool"),
    *("ENV APPDIR=/opt/own", "ENV X=$APPDIR", "CMD own", "EXPOSE 1234", 'COPY ["files/a", "/opt/with blank"]'),
)
PROGRAMS = (
    *("RUN echo x >/opt/app-root/x", "RUN cat /usr/share/const >/opt/app-root/y", "RUN echo $APPDIR >/opt/app-root/z"),
    *("RUN echo $PWD $HOME $PATH >/opt/app-root/v", "RUN mkdir -p /opt/app-root/d; ln -s x /opt/app-root/d/l"),
    *("ENV APPDIR=/opt/own", "USER 0:0", "ENV X=1", "LABEL a=b", "RUN own -c 'echo 1' >/opt/app-root/o || true"),
)
# Patterns of files, variables in all forms and places, commands beside those of the parent.
OTHER_PARENTS: Sequence[Sequence[str]] = (
    ("", "ENV APPDIR=/opt/v1", "ENV APPDIR=", 'ENV APPDIR="/opt/with blank"', "ENV APPDIR=/opt/current/../v2"),
    ("", "ENV OWNER=5001", "ENV OWNER=tool:tool", "ENV OWNER=7:8"),
    ("", OTHER_TOOL, "RUN rm /etc/group"),
    ("", 'CMD ["theirs"]', 'ENTRYPOINT ["theirs"]', "ENTRYPOINT theirs", 'ENTRYPOINT ["a"]\nCMD ["b"]'),
    ("", "RUN mkdir -p /opt/w/in; chmod 2775 /opt/w", "RUN mkdir /opt/w; chmod 1777 /opt/w", "RUN ln -s v1 /opt/w"),
    ("", "RUN ln -s /opt/deep /opt/w2", "RUN echo 1 >/opt/w2", "RUN mkdir -p /opt/w2/deep/in"),
    ("", "RUN ln -s / /srv/up", "RUN ln -s .. /srv/up", "RUN ln -s /srv/up /srv/up"),
    ("", "ENV PATH=/opt/v1:/bin", "ENV LEFT=left RIGHT=right", "LABEL x=y", "EXPOSE 1234/udp"),
    ("", "WORKDIR /opt/v1", "WORKDIR /opt/current", "USER tool\nWORKDIR /srv/theirs"),
)
OTHER_COPIES = (
    *("COPY files/* /opt/w/", "COPY files/[ab] /opt/w/", "COPY files/?urrent /opt/w2/", "COPY files/d*/in /opt/w2"),
    *("COPY files/a files/deep /opt/w2/", "COPY files/./deep/../a /opt/./v1/../w/a", "COPY files/a /srv/up/opt/v1/"),
    *("COPY files/a ${APPDIR:-/opt/v2}/", 'COPY files/b "${APPDIR:+/opt/v1}/b"', 'COPY files/b "/opt/$APPDIR"'),
    *("COPY files/a /opt/\\$APPDIR", "COPY files/a '/opt/$APPDIR'", "COPY --chown=$OWNER files/b /opt/t"),
    *("COPY --chown=${OWNER:-5:6} --chmod=2755 files/ /opt/w/", "COPY --chown=:5 files/a /opt/a", "COPY . /opt/w"),
    *('WORKDIR "${APPDIR:-/srv/wk}/in"', "WORKDIR ../up", "WORKDIR /srv/up/srv/new", "WORKDIR /opt/w/./x/"),
    *("USER ${OWNER:-1001:0}", "USER tool:root", "ENV PATH=/opt/own:$PATH", "ENV A=${LEFT}-${RIGHT:-none} B=$A"),
    *('CMD ["ours"]', 'ENTRYPOINT ["ours"]', "ENTRYPOINT ours $A", 'LABEL l="$APPDIR" m=${OWNER:+set}', "EXPOSE 1234"),
)
KINDS = {"common": (PARENTS, COPIES, 24, 2000), "forms": (OTHER_PARENTS, OTHER_COPIES, 12, 900)}
SEED, OF_PARENTS, OTHERWISE = 16, 12, 0.4


def _some(chance: random.Random, kinds: Sequence[Sequence[str]]) -> list[str]:
    """One of each kind, mostly the first: parents that differ in everything share no layer."""
    return [chance.choice(kind) if chance.random() < OTHERWISE else kind[0] for kind in kinds]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_carried_is_what_a_build_gives(bench: Bench, kind: str) -> None:
    kinds, copies, of_stages, at_least = KINDS[kind]
    chance = random.Random(SEED)
    parents = [bench.workshop.build(ROOT + "\n".join(_some(chance, kinds))) for _ in range(OF_PARENTS)]
    counted: Counter[str] = Counter()
    for number in range(of_stages):
        programs = number % 3 == 0 and kind == "common"
        stage = bench.stage(_any_of(chance, PROGRAMS if programs else copies), programs=programs)
        made: list[Manifest | None] = []
        for at, parent in enumerate(parents):
            try:
                made.append(bench.made(stage, f"{kind} {number} {at}", parent))
            except (RefitError, ValueError):  # there is no building it on this one
                made.append(None)
        for at, image in enumerate(made):
            for other, one in enumerate(made):
                if image is None or at == other:
                    continue
                carried = bench.carried(stage, f"{kind} {number} {at}", parents[other])
                assert carried is None or carried == one, (stage.text, at, other)
                counted["carried" if carried else "refused"] += 1
    print(f"{counted['carried']} carried, {counted['refused']} refused")
    assert counted.total() >= at_least and min(counted.values()) >= at_least / 10


def _any_of(chance: random.Random, steps: Sequence[str]) -> str:
    """One to four of these instructions, of which one writes files."""
    while True:
        text = "\n".join(chance.sample(steps, chance.randint(1, 4)))
        with suppress(ValueError):  # one whose effect isn't known: it is always built
            if has_layer(text):
                return text
