"""Grafted images against rebuilt ones, with a real buildah and a real registry."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from time import monotonic

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.grafting import graft_fit
from flows.images.grafting.configuration import configured, written
from flows.images.grafting.layers import Stored, Trees, UnreadableLayer, compare
from flows.images.manifests import Manifest, digest_of
from flows.images.registry import Registry
from flows.images.stages import local_name
from tests.support.waiting import free_port, wait_until
from tests.support.workshop import PARENT, Workshop, workshop

__all__ = ["workshop"]

APPEND_SECONDS = 0.1
ATTRIBUTE = b"\xffbytes\0"
# A security patch as bases get them: files, a user, a variable, a folder that is gone.
PATCHED = f"""\
{PARENT}
RUN echo dev:x:1001:0 >> /etc/passwd; echo new > /etc/ld.so.cache; rm -r /usr/share/old; mkdir /usr/share/new
ENV PATH=/opt/app-root/bin:$PATH
LABEL patched=yes
"""
CHILD = """\
# what a bundle and an IDE do
RUN mkdir /opt/app-root/bin /opt/app-root/etc; echo 'import six' > /opt/app-root/six.py; \\
    ln /opt/app-root/six.py /opt/app-root/hard.py; \\
    # a comment in between
    ln -s six.py /opt/app-root/soft.py; rm -r /home/dev; mkdir /home/dev
COPY --chmod=0755 files/start /opt/app-root/bin/start
COPY ["files/start", "/opt/app-root/etc/"]
ENV PATH=/opt/own:$PATH \\
    PORT="8888" NAME='my $PATH'
EXPOSE $PORT 9999/udp
LABEL title="an image" "of ${PORT:-nothing}"=x
WORKDIR work
USER 1001:0
CMD ["start"]
"""


@pytest.fixture(scope="module")
def parent(workshop: Workshop) -> Manifest:
    return workshop.build(PARENT)


@pytest.fixture(scope="module")
def child(workshop: Workshop, parent: Manifest) -> Manifest:
    return workshop.build(CHILD, parent)


@pytest.fixture
def trees(workshop: Workshop) -> Trees:
    return Trees(workshop.settings, workshop.registry)


def _obstacles(workshop: Workshop, trees: Trees, image: Manifest, old: Manifest, new: Manifest) -> list[str]:
    different = graft_fit.differing(trees.tree(workshop.repository, old), trees.tree(workshop.repository, new))
    assert different
    carried = [trees.layer(workshop.repository, part) for part in workshop.carried(image, old)]
    return [str(obstacle) for obstacle in graft_fit.obstacles(carried, different)]


def test_a_grafted_image_is_what_a_rebuilt_one_is(
    workshop: Workshop, trees: Trees, parent: Manifest, child: Manifest
) -> None:
    patched = workshop.build(PATCHED)
    assert _obstacles(workshop, trees, child, parent, patched) == []
    grafted = workshop.graft(child, parent, patched, CHILD)
    rebuilt = workshop.build(CHILD, patched)
    assert compare(trees, workshop.repository, grafted, rebuilt) == ()
    assert grafted == rebuilt  # byte by byte


def test_to_append_a_layer_takes_no_time(workshop: Workshop, trees: Trees, parent: Manifest, child: Manifest) -> None:
    config, carried = workshop.config(child), workshop.carried(child, parent)
    images = list[Manifest]()

    def seconds() -> float:
        labelled = {**config, "config": {"Labels": {"number": str(len(images))}}}
        started = monotonic()
        images.append(workshop.append(parent, carried, labelled))
        return monotonic() - started

    wait_until(lambda: seconds() < APPEND_SECONDS)  # at its best: others work here, too
    told = compare(trees, workshop.repository, child, images[-1])
    assert {difference.sort for difference in told} == {"config"}
    assert "config.Labels" in {difference.name for difference in told}


def test_what_the_rule_forbids_would_have_been_wrong(
    workshop: Workshop, trees: Trees, parent: Manifest, child: Manifest
) -> None:
    other = workshop.build(f"{PARENT}\nRUN chmod 0775 /opt")
    assert ["/opt" in obstacle for obstacle in _obstacles(workshop, trees, child, parent, other)] == [True]
    grafted = workshop.graft(child, parent, other, CHILD)
    rebuilt = workshop.build(CHILD, other)
    told = compare(trees, workshop.repository, grafted, rebuilt)
    assert [(difference.sort, difference.name) for difference in told] == [("files", "opt")]


TEXTS = {
    "expansion": """\
ENV A=1 B="two words" C='single $A' D=$PATH:/d E="${PATH}:/e" F=a\\ b G=${NOPE:-def} H=${HOME:+$HOME/set} I=\\$HOME
ENV J=x"y"'z' K=$A L="\\"quoted\\" \\$HOME \\n" M= N="" O=$ P=$NOPE PATH=/new:$PATH
ENV Q the old  form of "it" $A
ENV A=2 R=$A
LABEL one=1 two="2 $A" "th ree"='$A' four=${PATH}
USER $A
WORKDIR $HOME/x
WORKDIR ../y/./z""",
    "ports": "EXPOSE 80\nEXPOSE 80/udp 81/udp 81/tcp",
    "trailing": "WORKDIR /a/b/\nENV  A=1   \\\n\n  # comment\n\tB=2  \nCMD echo hi  $HOME  ",
    "entry point": 'ENTRYPOINT ["a", "b \\u00e9"]',
    "entry point after command": 'CMD ["c"]\nentrypoint exec d',
    "run": 'run echo "$HOME" \\\n  && true\nRUN ["/bin/cat", "/etc/passwd"]\nCMD ["x"]\nRUN  true # < & é',
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_recomputed_configuration_is_the_one_that_buildah_writes(
    workshop: Workshop, parent: Manifest, name: str
) -> None:
    built = workshop.build(TEXTS[name], parent)
    (part,) = workshop.carried(built, parent)
    origin = local_name(parent.digest)
    config = configured(workshop.config(parent), TEXTS[name], part.diff_id, origin=origin)
    assert config == workshop.config(built)
    assert digest_of(written(config)) == built.document["config"]["digest"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "layer"
    inside = root / "opt" / "app-root"
    inside.mkdir(parents=True)
    (inside / "six.py").write_text("import this\n")
    (inside / "hard.py").hardlink_to(inside / "six.py")
    (inside / "soft.py").symlink_to("six.py")
    (inside / ("long" * 60)).write_bytes(os.urandom(3 << 20))
    os.setxattr(inside / "six.py", "user.kind", ATTRIBUTE)
    (inside / "six.py").chmod(0o4755)
    os.chown(inside, 1001, 7)
    for path in (root / "opt", inside):
        path.chmod(0o755)
    return root


def store(workshop: Workshop, folder: Path) -> Stored:
    """A layer with what is in a folder, written by other programs than ours."""
    archive = folder.parent / "layer.tar"
    options = ["--xattrs", "--xattrs-include=*", "--sort=name", "--numeric-owner"]
    command.run(["tar", *options, "-cf", archive, "-C", folder, *(path.name for path in folder.iterdir())])
    content = gzip.compress(archive.read_bytes(), mtime=0)
    digest = workshop.registry.put_blob(workshop.repository, content)
    return Stored(digest, len(content), digest_of(archive.read_bytes()))


def test_a_layer_is_read_as_what_is_in_it(workshop: Workshop, trees: Trees, folder: Path) -> None:
    tree = graft_fit.merge([trees.layer(workshop.repository, store(workshop, folder))])
    assert tree["opt/app-root/hard.py"] == tree["opt/app-root/six.py"]
    assert tree["opt/app-root/six.py"].mode == 0o4755
    assert tree["opt/app-root/six.py"].xattrs == f"user.kind={ATTRIBUTE.hex()}"
    assert (tree["opt/app-root"].uid, tree["opt/app-root"].gid) == (1001, 7)


def test_an_image_with_an_appended_layer_can_be_used(
    workshop: Workshop, trees: Trees, parent: Manifest, folder: Path
) -> None:
    stored = store(workshop, folder)
    text = "ENV PATH=/opt/app-root:$PATH\nUSER 1001:0"
    config = configured(workshop.config(parent), text, stored.diff_id, origin=local_name(parent.digest))
    image = workshop.append(parent, [stored], config)
    assert workshop.append(parent, [stored], config) == image
    reference = f"docker://{workshop.registry.host}/{workshop.repository}@{image.digest}"
    container = workshop.buildah("from", "--tls-verify=false", reference).strip()
    try:
        isolation = ["--isolation", tools.isolation(workshop.settings)]
        seen = workshop.buildah("run", *isolation, container, "sh", "-c", "echo $PATH; cat /opt/app-root/soft.py")
        assert seen == "/opt/app-root:/usr/local/bin:/usr/bin:/bin\nimport this\n"
    finally:
        workshop.buildah("rm", container)
    differing = graft_fit.differing(trees.tree(workshop.repository, parent), trees.tree(workshop.repository, image))
    assert {path.partition("/")[0] for path in differing} == {"opt"}


def test_a_configuration_of_other_layers_is_refused(workshop: Workshop, parent: Manifest, child: Manifest) -> None:
    with pytest.raises(ValueError, match="are not those of the image"):
        workshop.append(parent, [], workshop.config(child))


def test_a_layer_is_downloaded_once(workshop: Workshop, trees: Trees, folder: Path) -> None:
    stored = store(workshop, folder)
    first = trees.layer(workshop.repository, stored)
    nowhere = Registry(Settings(home=workshop.settings.home, registry_port=free_port()))
    assert Trees(workshop.settings, nowhere).layer(workshop.repository, stored) == first


def test_what_was_kept_of_a_layer_and_is_damaged_is_read_anew(workshop: Workshop, trees: Trees, folder: Path) -> None:
    stored = store(workshop, folder)
    first = trees.layer(workshop.repository, stored)
    (note,) = workshop.settings.folder("cache", "trees").glob(f"{stored.digest.removeprefix('sha256:')}.tree.*")
    note.write_text("{half")
    assert Trees(workshop.settings, workshop.registry).layer(workshop.repository, stored) == first


@pytest.mark.parametrize("kind", ["tar+zstd", "tar+gzip", "tar"])
def test_a_layer_that_cannot_be_read_is_said_to_be_so(workshop: Workshop, trees: Trees, kind: str) -> None:
    digest = workshop.registry.put_blob(workshop.repository, b"neither a tar nor anything else")
    part = Stored(digest, 31, digest, f"application/vnd.oci.image.layer.v1.{kind}")
    with pytest.raises(UnreadableLayer, match=digest):
        trees.layer(workshop.repository, part)
