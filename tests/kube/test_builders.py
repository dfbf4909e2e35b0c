"""Builders as Jobs of a real cluster: they share a run's stages by the database, and some of them die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from pydantic import SecretStr

from flows import services
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings
from flows.core.settings.environment import variables
from flows.images.stages import Graph
from flows.orchestration.builders import call_builders
from tests.support import tiny
from tests.support.building import graph_of, matrix
from tests.support.cluster import REGISTRY, Lab, kube
from tests.support.cluster import kubectl as in_tests
from tests.support.machine import private_home
from tests.support.machines import HERE, hand_over, handing
from tests.support.own_pod import BUILDS as NAMESPACE
from tests.support.own_pod import DEPLOY, builder_job, secret
from tests.support.postgresql import postgresql
from tests.support.prefect_api import post, prefect_client
from tests.support.waiting import PATIENCE, free_port, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(10 * PATIENCE)]

REFIT = Path(sys.executable).parent / "refit"
BRIDGE = REGISTRY.partition(":")[0]


def kubectl(*words: str, stdin: str = "") -> str:
    """Call kubectl in the namespace of builders."""
    return in_tests("--namespace", NAMESPACE, *words, stdin=stdin)


@pytest.fixture(scope="module")
def template(own_image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Job of builders in a file."""
    file = tmp_path_factory.mktemp("builders") / "job.yaml"
    file.write_text(yaml.safe_dump(builder_job(own_image)))
    return file


@pytest.fixture(scope="module")
def refit(cluster: Lab, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Refit outside of the cluster, with a database, a registry and a Prefect server that Pods reach."""
    folder = tmp_path_factory.mktemp("refit")
    with postgresql(BRIDGE) as server:
        shared: dict[str, Any] = {
            **{"registry": REGISTRY, "registry_tls": False, "database_url": server.add_database()},
            **{"auth": SecretStr("refit:of all"), "builders": 2},
        }
        own = {"bind_address": BRIDGE, "prefect_port": free_port(), "kubernetes": ClusterSettings(builder_job=template)}
        with private_home(folder / "home", free_port(), **shared, **own) as settings:
            try:
                kubectl("apply", "-k", str(DEPLOY / "builder"))
                shared_with_builders = secret("refit-builder", **variables_of_builders(settings))
                kubectl("apply", "-f", "-", stdin=yaml.safe_dump(shared_with_builders))
                environment = {**os.environ, **variables(settings)}
                subprocess.run([REFIT, "up"], env=environment, check=True)
                yield settings
            finally:
                services.down(settings)
                in_tests("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s")


def variables_of_builders(settings: Settings) -> dict[str, str]:
    """The variables by which builders find the things that they share with Refit."""
    return {
        "REFIT_REGISTRY": settings.registry,
        "REFIT_REGISTRY_TLS": "false",
        "REFIT_REPOSITORY": settings.repository,
        "REFIT_DATABASE_URL": settings.database_url,
        "REFIT_PREFECT_SERVER": settings.prefect_url,
        "REFIT_AUTH": settings.auth.get_secret_value(),
    }


@pytest.fixture(autouse=True)
def _speaks_to_prefect(refit: Settings) -> Iterator[None]:
    """This process calls builders as a run of a release does."""
    login = refit.auth.get_secret_value()
    with temporary_settings({PREFECT_API_URL: refit.prefect_api, PREFECT_API_AUTH_STRING: login}):
        yield


def pods() -> dict[str, dict[str, Any]]:
    """The Pods of builders that are there and not about to go."""
    told = json.loads(kubectl("get", "pods", "-l", "io.refit.kind=builder", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod for pod in told if "deletionTimestamp" not in pod["metadata"]}


def executions(refit: Settings, run: str) -> Counter[str]:
    """How often the step of each stage was executed to its end, by the logs of all builders of a run in Prefect."""
    with prefect_client(refit) as api:
        lines = [
            line
            for builder in builders_of(api, run)
            for line in post(api, "/logs/filter", {"logs": {"flow_run_id": {"any_": [builder["id"]]}}, "limit": 200})
        ]
    pages = (line["message"].partition(":\n") for line in lines)
    return Counter({name: done for name, _, text in pages if (done := tiny.executions(text))})


def builders_of(api: httpx.Client, run: str) -> list[dict[str, Any]]:
    """The flow runs of the builders of a run."""
    told = post(api, "/flow_runs/filter", {"flows": {"name": {"any_": ["build-stages"]}}})
    return [each for each in told if each["parameters"]["run"] == run]


def ended(refit: Settings, run: str) -> bool:
    """Whether all builders of a run have ended well, and nothing of them is in the cluster."""
    with prefect_client(refit) as api:
        states = {each["state_type"] for each in builders_of(api, run)}
    return states == {"COMPLETED"} and not json.loads(kubectl("get", "pods,jobs", "-o", "json"))["items"]


def test_builders_on_two_nodes_share_a_run_and_execute_each_stage_once(refit: Settings) -> None:
    graph = matrix(nap=2.0)
    with ThreadPoolExecutor(len(graph.stages)) as pool, handing(refit, graph) as handover:
        assert len(call_builders(handover.jobs.run, {HERE}, refit)) == 2
        futures = hand_over(handover, graph, pool)
        wait_until(lambda: len(handover.jobs.builders()) == 2)
        assert len({pod["spec"]["nodeName"] for pod in pods().values()}) == 2
        assert {future.result().how for future in futures.values()} == {"built"}
    run = handover.jobs.run
    wait_until(lambda: ended(refit, run))
    assert executions(refit, run) == dict.fromkeys(graph.stages, 1)
    again = handing_again(refit, graph)
    assert again == {"reused"}


def handing_again(refit: Settings, graph: Graph) -> set[str]:
    """How the stages come to be that were built before."""
    with ThreadPoolExecutor(len(graph.stages)) as pool, handing(refit, graph) as handover:
        call_builders(handover.jobs.run, {HERE}, refit)
        how = {future.result().how for future in hand_over(handover, graph, pool).values()}
    wait_until(lambda: ended(refit, handover.jobs.run))
    return how


@pytest.mark.parametrize("end", ["kill", "node"])
def test_a_builder_that_is_gone_leaves_one_stage_to_another(refit: Settings, end: str) -> None:
    nap = 20.0 if end == "kill" else 21.0
    graph = graph_of(tiny.root(), tiny.on("root", f"first{end}"), tiny.on(f"first{end}", f"slow{end}", nap))
    with ThreadPoolExecutor(3) as pool, handing(refit, graph) as handover:
        call_builders(handover.jobs.run, {HERE}, refit)
        wait_until(lambda: len(handover.jobs.builders()) == 2)
        futures = hand_over(handover, graph, pool)
        builder = at(handover.jobs.states, f"slow{end}")
        node = pods()[builder]["spec"]["nodeName"]
        try:
            if end == "kill":
                kubectl("delete", "pod", builder, "--grace-period=0", "--force")
            else:
                kube("node-stop", node)
            assert {future.result().how for future in futures.values()} <= {"built", "reused"}
        finally:
            if end == "node":
                kube("node-start", node)
    run = handover.jobs.run
    wait_until(lambda: not json.loads(kubectl("get", "pods,jobs", "-o", "json"))["items"], 3 * PATIENCE)
    assert executions(refit, run)[f"slow{end}"] == 1


def worker(refit: Settings) -> int:
    """The process of Refit's worker, once it answers."""
    (state,) = (each for each in services.status(refit) if each.name == "worker" and each.answering and each.pid)
    return int(state.pid or 0)


def kill_worker(refit: Settings) -> None:
    """Kill Refit's worker, and wait until its supervisor has started another one."""
    os.kill(before := worker(refit), signal.SIGKILL)

    def is_another() -> bool:
        with suppress(ValueError):  # none answers just now
            return worker(refit) != before
        return False

    wait_until(is_another)


def test_the_jobs_of_a_worker_that_was_killed_go_on_and_the_next_one_removes_them(refit: Settings) -> None:
    graph = graph_of(tiny.root(), tiny.on("root", "firstleft"), tiny.on("firstleft", "slowleft", 22.0))
    with ThreadPoolExecutor(3) as pool, handing(refit, graph) as handover:
        call_builders(handover.jobs.run, {HERE}, refit)
        wait_until(lambda: len(handover.jobs.builders()) == 2)
        futures = hand_over(handover, graph, pool)
        at(handover.jobs.states, "slowleft")
        before = {*pods()}
        kill_worker(refit)
        assert {*pods()} <= before  # the next worker begins none of the runs again
        assert {future.result().how for future in futures.values()} <= {"built", "reused"}
    run = handover.jobs.run
    wait_until(lambda: ended(refit, run))
    assert executions(refit, run)["slowleft"] == 1


def test_runs_that_are_cancelled_while_no_worker_is_there_end_with_the_next_one(refit: Settings) -> None:
    with handing(refit, graph_of(tiny.root())) as handover:
        call_builders(handover.jobs.run, {HERE}, refit)
        wait_until(lambda: len(handover.jobs.builders()) == 2 and len(pods()) == 2)
        os.kill(worker(refit), signal.SIGKILL)
        with prefect_client(refit) as api:
            builders = [each["id"] for each in builders_of(api, handover.jobs.run)]
            for each in builders:
                post(api, f"/flow_runs/{each}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
            wait_until(lambda: not json.loads(kubectl("get", "pods,jobs", "-o", "json"))["items"])
            wait_until(lambda: {each["state_type"] for each in builders_of(api, handover.jobs.run)} == {"CANCELLED"})


def at(states: Any, stage: str) -> str:
    """The builder that is at a stage, once its step runs."""

    def seen() -> str:
        notes = [state.note for state in states() if state.stage == stage and state.taken]
        return notes[0].partition(":")[0] if notes and ":" in notes[0] else ""

    wait_until(seen)
    return seen()
