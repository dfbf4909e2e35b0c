"""The Job of a builder, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import anyio
import httpx
import pytest
import yaml
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed, Running

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings
from flows.orchestration import builder_jobs, builder_pod, offered, queues
from flows.sessions.kubernetes import builder_job
from flows.sessions.kubernetes.manifests import KIND
from flows.sessions.kubernetes.refusals import ClusterAway
from tests.support.waiting import PATIENCE

TEMPLATE = Path(__file__).parents[3] / "deploy" / "builder" / "job.yaml"


def test_a_job_is_the_template_with_a_name_labels_and_its_run() -> None:
    told, run = builder_job.template(TEMPLATE), uuid4()
    made = builder_job.manifest(told, run)
    assert made["metadata"]["name"] == f"refit-builder-{run}" and len(made["metadata"]["name"]) <= 63
    pod = made["spec"]["template"]
    for each in (made, pod):
        assert each["metadata"]["labels"] == {KIND: "builder", "io.refit.run": str(run)}
    (builder,) = pod["spec"]["containers"]
    assert builder["env"][-1] == {"name": "PREFECT__FLOW_RUN_ID", "value": str(run)}
    assert told == builder_job.template(TEMPLATE), "the template itself was changed"


def test_the_template_asks_for_no_more_than_a_user_namespace_needs() -> None:
    pod = builder_job.template(TEMPLATE)["spec"]["template"]["spec"]
    (builder,) = pod["containers"]
    security = builder["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SETUID", "SETGID", "SETFCAP"]}
    assert not security["privileged"] and not security["allowPrivilegeEscalation"]
    assert pod["automountServiceAccountToken"] is False and pod["hostUsers"] is False
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
    assert builder["args"][-1] == builder_pod.main.__module__


def test_builders_run_a_flow_that_is_on_offer_in_a_pool_of_no_operating_system() -> None:
    assert builder_pod.ENTRYPOINT in offered.ENTRYPOINTS
    assert not queues.is_ours(builder_jobs.POOL)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"kind": "Pod"},
        {"metadata": {}},
        {"spec": {"template": {"spec": {"containers": [{"name": "other"}]}}}},
        {"spec": {"template": {"spec": {"containers": ["builder"]}}}},
        {"spec": None},
        {"metadata": {"namespace": "refit-builds", "labels": ["team"]}},
        {"spec": {"template": {"metadata": ["team"], "spec": {"containers": [{"name": "builder"}]}}}},
        {"spec": {"template": {"spec": {"containers": [{"name": "builder", "env": {"TEAM": "a"}}]}}}},
        {"spec": {"template": {"spec": {"containers": [{"name": "builder"}, {"name": "builder"}]}}}},
    ],
)
def test_a_file_that_is_no_job_of_a_builder_is_refused(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**builder_job.template(TEMPLATE), **spoilt}))
    with pytest.raises(RefitError, match="has no Job of a builder"):
        builder_job.template(file)


def test_what_a_template_leaves_empty_counts_as_left_out(tmp_path: Path) -> None:
    told, run = builder_job.template(TEMPLATE), uuid4()
    told["metadata"]["labels"] = told["spec"]["template"]["metadata"] = None
    (builder,) = told["spec"]["template"]["spec"]["containers"]
    builder["env"] = None
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(told))
    made = builder_job.manifest(builder_job.template(file), run)
    assert made["spec"]["template"]["metadata"]["labels"] == {KIND: "builder", "io.refit.run": str(run)}
    assert len(made["spec"]["template"]["spec"]["containers"][0]["env"]) == 1


@pytest.mark.parametrize("content", [None, b"a: [", b"\xff\xfe\x00"])
def test_a_file_that_cant_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RefitError, match=r"job\.yaml can't be read"):
        builder_job.template(file)


SHARED: dict[str, Any] = {
    "registry": "registry.example.com",
    "database_url": "postgresql://refit:hunter2@db.example.com/refit",
    "bind_address": "192.0.2.7",
}


def test_a_builder_needs_what_pods_reach(tmp_path: Path) -> None:
    for more in ({}, {"bind_address": "0.0.0.0"}, {"prefect_server": "http://builds.example.com:4200"}):
        builder_job.check_shared(Settings(home=tmp_path, **{**SHARED, **more}))


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({"database_url": ""}, "`database_url`: SQLite"),
        ({"database_url": "postgresql://refit:hunter2@localhost/refit"}, "`database_url`: "),
        ({"registry": ""}, "`registry`: 127.0.0.1:5000 is loopback"),
        ({"registry": "[::1]:5000"}, "`registry`: "),
        ({"bind_address": "127.0.0.1"}, "`bind_address`: "),
        ({"prefect_server": "http://127.0.0.1:4200"}, "`prefect_server`: "),
    ],
)
def test_things_that_are_on_this_machine_alone_are_named(tmp_path: Path, spoilt: dict[str, Any], named: str) -> None:
    with pytest.raises(RefitError, match="can't reach what they share") as refused:
        builder_job.check_shared(Settings(home=tmp_path, **{**SHARED, **spoilt}))
    assert named in refused.value.why and "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (None, 1),
        ({}, None),
        ({"status": {"active": 1}}, None),
        ({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}, None),
        ({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, 1),
        ({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, 0),
    ],
)
def test_the_end_of_a_job_is_read_from_its_conditions(job: dict[str, Any] | None, code: int | None) -> None:
    assert builder_jobs.ended(job) == code


class Namespace:
    """A namespace of a cluster with Jobs in it, as far as builders' worker knows it; `away`: so many lists fail.

    `ends` is called when the Pods of a Job that is removed after them have ended.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.away = 0
        self.ends: Callable[[], None] = lambda: None

    def list(self, _: str, **labels: str) -> list[dict[str, Any]]:
        if self.away:
            self.away -= 1
            raise ClusterAway("It doesn't answer.")
        there = list(self.jobs.values())
        return [job for job in there if labels.items() <= job["metadata"].get("labels", {}).items()]

    def find(self, _: str, name: str) -> dict[str, Any] | None:
        job = self.jobs.get(name)
        if job and "deletionTimestamp" in job["metadata"]:
            self.ends()
            del self.jobs[name]  # the next look doesn't see it any more
        return job

    def ensure(self, _: str, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        self.jobs.setdefault(name, {**job, "metadata": {**job["metadata"], "uid": str(uuid4())}})

    def delete(self, _: str, name: str, *, uid: str, propagation: str) -> None:
        assert self.jobs[name]["metadata"]["uid"] == uid
        if propagation == "Foreground":
            self.jobs[name]["metadata"]["deletionTimestamp"] = "2026-11-26T23:00:00Z"
        else:
            assert propagation == "Background"
            del self.jobs[name]

    def end(self, name: str, how: str, ago: timedelta = timedelta()) -> None:
        at = (datetime.now(UTC) - ago).isoformat(timespec="seconds").replace("+00:00", "Z")
        condition = {"type": how, "status": "True", "lastTransitionTime": at}
        self.jobs[name] = {**self.jobs[name], "status": {"conditions": [condition]}}


class Prefect:
    """The flow runs of a server; an error stands for an answer that isn't a run's state, once."""

    def __init__(self) -> None:
        self.states: dict[UUID, State[Any]] = {}
        self.errors: list[Exception] = []

    async def read_flow_run(self, run: UUID) -> Any:
        if self.errors:
            raise self.errors.pop()
        if run not in self.states:
            raise ObjectNotFound(Exception("no such run"))
        return SimpleNamespace(id=run, state=self.states[run], name="run")

    async def set_flow_run_state(self, run: UUID, state: State[Any], *, force: bool) -> None:
        assert force
        self.states[run] = state


class Worker(builder_jobs.JobWorker):
    """The worker of builders, with a server of the test."""

    def __init__(self, server: Prefect) -> None:
        super().__init__(work_pool_name=builder_jobs.POOL)
        self.server: Any = server

    @property
    def client(self) -> Any:
        """The server of the test."""
        return self.server

    async def _propose_crashed_state(self, flow_run: Any, message: str, client: Any = None) -> None:
        self.server.states[flow_run.id] = Crashed(message=message)


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    made = Namespace()
    settings = Settings(home=tmp_path, kubernetes=ClusterSettings(builder_job=TEMPLATE))
    monkeypatch.setattr(builder_jobs, "load", lambda: settings)
    monkeypatch.setattr(builder_jobs, "Cluster", lambda _: made)
    for pause in ("POLL", "_PAUSE_SECONDS"):
        monkeypatch.setattr(builder_jobs, pause, 0.01, raising=False)
    return made


def jobs() -> builder_jobs.Jobs:
    return builder_jobs.Jobs(Settings(kubernetes=ClusterSettings(builder_job=TEMPLATE)))


def test_a_name_from_prefect_removes_no_job_of_others(namespace: Namespace) -> None:
    """Everybody who is logged in to Prefect can write the `infrastructure_pid` of a run."""
    namespace.ensure("jobs", {"metadata": {"name": "backup", "labels": {"app": "backup"}}})
    namespace.ensure("jobs", {"metadata": {"name": "bare"}})
    name = jobs().create(uuid4())
    worker = Worker(Prefect())
    for named in ("backup", "bare", "..", "", name):
        anyio.run(worker.kill_infrastructure, named, builder_jobs.JobOfBuilder())
    assert {*namespace.jobs} == {"backup", "bare"}


def test_a_job_that_has_just_ended_is_left_to_its_worker(namespace: Namespace) -> None:
    just, long_ago, again = uuid4(), uuid4(), uuid4()
    names = {run: jobs().create(run) for run in (just, long_ago, again)}
    namespace.end(names[just], "Complete", timedelta(minutes=50))
    namespace.end(names[long_ago], "Failed", timedelta(minutes=70))
    namespace.end(names[again], "Failed")
    jobs().create(again)  # that run is tried once more
    assert {*namespace.jobs} == {names[just], names[again]}
    assert "status" not in namespace.jobs[names[again]]


def test_a_cancellation_is_heard_after_a_server_that_was_away(namespace: Namespace) -> None:
    server, run = Prefect(), uuid4()
    server.errors += [httpx.ConnectError("away"), httpx.ReadTimeout("slow")]
    server.states[run] = Cancelling()
    flow_run: Any = SimpleNamespace(id=run)
    done = anyio.run(Worker(server).run, flow_run, builder_jobs.JobOfBuilder())
    assert done.status_code == 0 and server.states[run].is_cancelled() and not namespace.jobs


def test_a_run_that_is_cancelled_stays_so_though_its_process_calls_it_crashed(namespace: Namespace) -> None:
    server, run = Prefect(), uuid4()
    server.states[run] = Cancelling()
    flow_run: Any = SimpleNamespace(id=run)

    def crash() -> None:
        server.states[run] = Crashed(message="Execution was terminated by signal 15.")

    namespace.ends = crash
    done = anyio.run(Worker(server).run, flow_run, builder_jobs.JobOfBuilder())
    assert done.status_code == 0 and server.states[run].is_cancelled() and not namespace.jobs


@pytest.mark.parametrize(
    ("state", "end", "after"),
    [
        (None, None, None),
        (Cancelling(), None, "CANCELLED"),
        (Cancelled(), None, "CANCELLED"),
        (Running(), "Failed", "CRASHED"),
        (Running(), "Complete", "RUNNING"),
    ],
    ids=["gone", "cancelled", "cancelled by the worker before", "failed", "complete"],
)
def test_a_worker_follows_the_jobs_that_are_there_when_it_starts(
    namespace: Namespace, state: State[Any] | None, end: str | None, after: str | None
) -> None:
    server, run = Prefect(), uuid4()
    name = jobs().create(run)
    namespace.ensure("jobs", {"metadata": {"name": "strange", "labels": {KIND: "builder", "io.refit.run": "no uuid"}}})
    if state:
        server.states[run] = state
    if end:
        namespace.end(name, end)
    namespace.away = 2
    with_timeout(Worker(server)._adopt)
    assert {*namespace.jobs} == {"strange"}
    told = server.states.get(run)
    assert (told.type.value if told else None) == after


def test_a_worker_looks_for_jobs_when_it_starts_and_leaves_its_own_alone(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, run, own = Prefect(), uuid4(), uuid4()
    left, mine = jobs().create(run), jobs().create(own)
    worker = Worker(server)
    worker._followed.add(own)

    async def set_up() -> None:
        worker._runs_task_group = anyio.create_task_group()
        await worker._exit_stack.enter_async_context(worker._runs_task_group)

    async def start() -> None:
        async with worker:
            pass

    monkeypatch.setattr(worker, "setup", set_up)
    with_timeout(start)  # its runs are gone
    assert left not in namespace.jobs and mine in namespace.jobs


def with_timeout(call: Callable[[], Any]) -> None:
    """Call it, for so many seconds at most."""

    async def bounded() -> None:
        with anyio.fail_after(PATIENCE):
            await call()

    anyio.run(bounded)


def policies() -> Iterator[Mapping[str, Any]]:
    documents = yaml.safe_load_all((TEMPLATE.parent / "builder.yaml").read_text())
    yield from (each["spec"] for each in documents if each["kind"] == "NetworkPolicy")


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("169.254.169.254", False),
        ("169.254.170.2", False),
        ("168.63.129.16", False),
        ("100.100.100.200", False),
        ("fd00:ec2::254", False),
        ("fe80::a9fe:a9fe", False),
        ("192.0.2.7", True),
        ("10.1.2.3", True),
        ("2001:db8::7", True),
    ],
)
def test_builders_are_reached_by_nobody_and_reach_no_address_of_metadata(address: str, reached: bool) -> None:
    (policy,) = policies()
    assert policy["podSelector"] == {} and {*policy["policyTypes"]} == {"Ingress", "Egress"} and "ingress" not in policy
    blocks = [to["ipBlock"] for rule in policy["egress"] if "ports" not in rule for to in rule["to"] if "ipBlock" in to]
    where = ip_address(address)
    assert reached == any(
        where in ip_network(block["cidr"]) and not any(where in ip_network(each) for each in block["except"])
        for block in blocks
    )


def test_builders_reach_the_cluster_s_names_wherever_they_are_served() -> None:
    (policy,) = policies()
    (names,) = (rule["ports"] for rule in policy["egress"] if "to" not in rule)
    assert [(each["protocol"], each["port"]) for each in names] == [("UDP", 53), ("TCP", 53)]
