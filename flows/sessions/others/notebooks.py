"""Notebooks of Kubeflow and Open Data Hub: their controller makes their Pods, and Refit puts in their images.

A patch of the image lets the controller end the Pod and make another one. It is one change of one object, so that no
moment of a move leaves a person without a Notebook that comes up by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.activity.evidence import Look
from flows.sessions.activity.probes import see
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict, StillWaiting
from flows.sessions.kubernetes.kinds import NOTEBOOKS
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.kubernetes.programs import output_of, talk
from flows.sessions.model import PREFIX, Session
from flows.sessions.others import prove_inside
from flows.sessions.others.images import OwnImages, session_on
from flows.sessions.others.model import WRITTEN, Owned, SomebodyElse, Stopped, name_of_notebook, owner_of
from flows.sessions.others.notebook_records import OF_NOTEBOOK, Notebook, NotebookPod, exchange, notebook, pod, pod_of

_PROOF = Path(prove_inside.__file__)
_PYTHON = ("python3", "-I", "-c", "exec(input())")
# For so long a Pod is watched before it is asked again whether its Notebook is still to have it.
_ASK_SECONDS = 5.0


class Notebooks:
    """Implements `Keeper` for the Notebooks of some namespaces."""

    kind = "Notebook"
    lacks = "no snapshot of its home, no rehearsal, no warm start: its controller ends the Pod and makes another"

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked of the cluster yet."""
        options = ClusterOptions.of(settings)
        names = settings.others.notebooks
        self._clusters = {name: Cluster(replace(options, namespace=name)) for name in names}
        self._images, self._seconds = OwnImages(settings), options.start_seconds
        self._ready_seconds = settings.ready_timeout_seconds

    def see(self) -> tuple[Owned, ...]:
        """All Notebooks of these namespaces."""
        return tuple(owned for cluster in self._clusters.values() for owned in self._all(cluster))

    def _all(self, cluster: Cluster) -> Iterator[Owned]:
        listed = [notebook(document) for document in cluster.list(NOTEBOOKS)]
        pods = cluster.list("pods", **{OF_NOTEBOOK: ""}) if listed else []
        for each in listed:
            yield self._owned(each, pod_of(pods, each) if each.place >= 0 else None)

    def _owned(self, of: Notebook, its: NotebookPod | None) -> Owned:
        current = its if its and its.asks == of.image else None
        image = self._images.of(of.image, current.digest if current else "") if of.place >= 0 else None
        trouble = of.trouble or ("" if image else f"its image isn't one of Refit's: {of.image}")
        path = its.prefix if its else ""
        session = session_on(
            image,
            name=name_of_notebook(of.namespace, of.name),
            environment={WRITTEN: of.image, **({PREFIX: path} if path else {})},
            owned_by=f"{self.kind}/{of.namespace}/{of.name}/{of.uid}",
        )
        runs = bool(image and current and current.digest == image.digest and not of.stopped)
        return Owned(session, runs, trouble, _warning(of))

    def find(self, session: Session) -> Owned | None:
        """The same Notebook as it is now; none: it is gone."""
        cluster, name = self._of(session)
        if (of := self._read(session)) is None:
            return None
        return self._owned(of, pod_of(cluster.list("pods", **{OF_NOTEBOOK: name}), of) if of.place >= 0 else None)

    def _of(self, session: Session) -> tuple[Cluster, str]:
        _, namespace, name, _ = session.owned_by.split("/")
        if namespace not in self._clusters:
            raise RefitError(
                f"Refit no longer manages the namespace {namespace}, which has {owner_of(session)}.",
                hint=f"write {namespace} into `others.notebooks` of settings.yaml again until its moves have ended.",
            )
        return self._clusters[namespace], name

    def _read(self, session: Session) -> Notebook | None:
        cluster, name = self._of(session)
        document = cluster.find(NOTEBOOKS, name)
        read = notebook(document) if document else None
        return read if read and read.uid == session.owned_by.rpartition("/")[2] else None

    def _there(self, session: Session) -> Notebook:
        if (of := self._read(session)) is None:
            raise SomebodyElse(f"The {owner_of(session)} is gone.")
        return of

    def look(self, session: Session) -> Look:
        """Look from inside its container, as into other sessions."""
        cluster, its, container = self._pod(session)
        return see(_Inside(cluster, its, container), session)

    def _pod(self, session: Session) -> tuple[Cluster, str, str]:
        cluster, name = self._of(session)
        of = self._there(session)
        if (its := pod_of(cluster.list("pods", **{OF_NOTEBOOK: name}), of)) is None:
            raise RefitError(f"The {owner_of(session)} doesn't run.")
        return cluster, its.name, of.container

    def check(self, before: Session, after: Session) -> str:
        """Patch without effect: rights, webhooks, and the object's schema are asked."""
        of, image = self._there(before), self._reference(after)
        if of.trouble:
            raise RefitError(f"The image of the {owner_of(before)} can't be put in: {of.trouble}.")
        answer = notebook(self._patch(before, of, image, dryRun="All"))
        if answer.image != image:
            raise RefitError(
                f"The image of the {owner_of(before)} can't be put in.",
                why=f"A webhook puts {answer.image!r} in its place"
                + (f"; Open Data Hub has it from the annotation {of.selection!r}." if of.selection else "."),
                hint="let the image stream have Refit's image, or take the annotation away.",
            )
        return _warning(of)

    def put(self, before: Session, after: Session) -> None:
        """Patch the image; the controller ends the old Pod."""
        of, image = self._there(before), self._reference(after)
        if of.image == image:
            return
        if of.image != self._reference(before):
            raise SomebodyElse(f"Somebody else has given the {owner_of(before)} the image {of.image}.")
        answer = notebook(self._patch(before, of, image))
        if answer.image != image:
            raise SomebodyElse(f"A webhook has given the {owner_of(before)} the image {answer.image}.")

    def _patch(self, session: Session, of: Notebook, image: str, **more: str) -> dict[str, Any]:
        cluster, name = self._of(session)
        try:
            return cluster.patch(NOTEBOOKS, name, exchange(of, image), "json", **more)
        except ClusterError as error:
            if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:  # one of the tests in the patch
                raise SomebodyElse(f"Somebody else changes the {owner_of(session)} just now.", why=error.why) from None
            raise

    def _reference(self, session: Session) -> str:
        written = session.environment.get(WRITTEN, "")
        as_it_was = session.generation == 1  # a session that moves is the next one
        return written if as_it_was and written else self._images.reference(session.image)

    def start(self, session: Session) -> None:
        """Wait for the Pod that the controller makes."""
        cluster, name = self._of(session)
        deadline = time.monotonic() + self._seconds
        while True:
            of = self._there(session)
            if of.image != self._reference(session):
                raise SomebodyElse(f"Somebody else has given the {owner_of(session)} the image {of.image}.")
            if of.stopped:
                raise Stopped(f"The {owner_of(session)} was stopped meanwhile.")
            remaining = deadline - time.monotonic()
            self._free(cluster, of)
            is_up = partial(_is_up, session, of)
            with suppress(StillWaiting):
                cluster.wait(
                    "pods", f"{name}-0", is_up, min(_ASK_SECONDS, max(remaining, 1.0)), f"{name}-0 doesn't run"
                )
                return
            if remaining <= 0:
                raise RefitError(
                    f"The {owner_of(session)} doesn't run its image within {self._seconds:g} s.",
                    hint=f"see `kubectl --namespace {of.namespace} describe pod {name}-0`.",
                )

    def _free(self, cluster: Cluster, of: Notebook) -> None:
        """Remove a Pod of another image that isn't ready: its StatefulSet waits for it for ever (kubernetes#67250)."""
        its = pod_of(cluster.list("pods", **{OF_NOTEBOOK: of.name}), of)
        if its and its.asks != of.image and not its.ready:
            with suppress(Conflict):
                cluster.delete("pods", its.name, uid=its.uid)

    def prove(self, session: Session) -> str:
        """Ask the IDE from inside of its container, start a kernel, and write a file into the home."""
        cluster, its, container = self._pod(session)
        access = session.access
        request = {
            "url": f"http://127.0.0.1:{access.port}{session.path}",
            "health": access.health if access.port else "",
            "kernels": access.protocol == "jupyter",
            "seconds": self._ready_seconds * access.patience,
        }
        script = f"exec({_PROOF.read_text(encoding='utf-8')!a})"
        limit = float(request["seconds"]) + 30.0  # type: ignore[arg-type]
        output = output_of(cluster, its, container, _PYTHON, f"{script}\n{json.dumps(request)}\n", limit=limit)
        return output.strip()[:500]


@dataclass(frozen=True)
class _Inside:
    """A program beside a Notebook's, in its container."""

    cluster: Cluster
    pod: str
    name: str

    def dialogue(
        self, container: str, argv: Sequence[str], limit: float = 600.0
    ) -> AbstractContextManager[Callable[[str], str]]:
        return talk(self.cluster, self.pod, self.name, argv, limit)


def _is_up(session: Session, of: Notebook, document: Mapping[str, Any] | None) -> bool:
    """Whether a Pod runs a session's image.

    Raises:
        RefitError: it never will.
    """
    if document is None:
        return False
    its = pod(document, of.container)
    if its.ending or its.asks != of.image:
        return False
    if its.trouble:
        raise RefitError(f"The Pod of the {owner_of(session)} can't run.", why=its.trouble)
    return its.digest == session.image


def _warning(of: Notebook) -> str:
    notes = (
        f"its dashboard goes on to show {of.selection}" if of.selection else "",
        f"a change that waits for its next start comes along: {of.pending}" if of.pending else "",
    )
    return "; ".join(filter(None, notes))
