"""The doctor's findings on sessions that others own: whether Refit may see and move them. Nothing is changed there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.services.doctor_findings import Finding

with lazily(globals()):
    from flows.sessions.kubernetes import refusals, rights
    from flows.sessions.kubernetes.cluster import Cluster
    from flows.sessions.kubernetes.manifests import ClusterOptions
    from flows.sessions.kubernetes.refusals import Right
    from flows.sessions.others.all_others import Others


def others(settings: Settings) -> Iterable[Finding]:
    """Whether each namespace and the Hub of `others` let Refit do what it has to; nothing where it names none."""
    others = settings.others
    for namespace in others.notebooks:
        cluster = Cluster(replace(ClusterOptions.of(settings), namespace=namespace))
        try:
            yield judge_notebooks(rights.lacking(cluster, rights.OF_NOTEBOOKS), namespace)
        except RefitError as error:
            yield Finding("notebooks", False, f"{namespace}: {error.what} {error.why}".strip(), error.hint)
        finally:
            cluster.close()
    if others.notebooks or others.hub.api:
        seen, problems = Others(settings).see()
        yield from (
            Finding("others", False, f"{problem.what} {problem.why}".strip(), problem.hint) for problem in problems
        )
        if not problems:
            movable = sum(not owned.trouble for owned in seen)
            yield Finding("others", True, f"{len(seen)} sessions of others are seen, {movable} of them can be moved")


def judge_notebooks(lacking: Sequence[Right], namespace: str) -> Finding:
    """The finding on the rights that Refit lacks where others own Notebooks, with the role that grants all it needs."""
    if not lacking:
        return Finding("notebooks", True, f"all that Refit needs in the namespace {namespace}")
    hint = "let an administrator apply this role, and bind it to the user that Refit is there:"
    role = refusals.role(rights.OF_NOTEBOOKS, namespace)
    return Finding("notebooks", False, f"missing in {namespace}: {', '.join(map(str, lacking))}", f"{hint}\n{role}")
