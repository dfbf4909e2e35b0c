"""Nodes of a real API server whose kubelets are simulated, as by kwok: Pods run at once, and do nothing.

A program of its own, `python -m tests.support.simulated_nodes FOLDER NODES PORT`: its CPU and memory are nobody else's.
It says of each Pod that it runs, gives a container another id when its image changes, and answers `exec` as the
program of slots would.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import yaml
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.support.cluster import kubectl
from tests.support.machine import ROOT
from tests.support.waiting import free_port

_AT_ONCE, _HEARTBEAT_SECONDS = 32, 6.0
_INPUT, _OUTPUT, _STATUS = 0, 1, 3
_PATCH = {"Content-Type": "application/merge-patch+json"}
_RETRIED = (409, 429, 500, 503, 504)


@contextmanager
def simulated_nodes(folder: Path, number: int) -> Iterator[None]:
    """That many nodes in the cluster whose `scripts/kube` has this folder."""
    words = [str(folder), str(number), str(free_port())]
    with (folder / "run" / "log" / "simulated-nodes.log").open("ab") as log:
        call = [sys.executable, "-m", __name__, *words]
        process = subprocess.Popen(call, stdout=log, stderr=log, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        # Else Pods of others are given to nodes that nobody is any more.
        kubectl("delete", "nodes", *_names(number), "--ignore-not-found")


def _names(number: int) -> list[str]:
    return [f"simulated-{n}" for n in range(number)]


def first_id(pod: str, container: str) -> str:
    """The id of the first container of that name in a Pod."""
    return f"containerd://{pod}-{container}"


class _Nodes:
    """All of these nodes."""

    def __init__(self, folder: Path, number: int, port: int) -> None:
        self._run, self._port = folder / "run", port
        self._names = _names(number)
        self._ids, self._gate = count(1), asyncio.Semaphore(_AT_ONCE)
        self._images: dict[str, dict[str, tuple[str, str]]] = {}
        self._running: dict[tuple[str, str], str] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._api = _client(self._run / "admin.kubeconfig")

    async def run(self) -> None:
        """Be these nodes, for ever."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*_certificate(self._run / "pki"))
        protocols = [Subprotocol("v4.channel.k8s.io")]
        async with serve(self._exec, "127.0.0.1", self._port, ssl=context, subprotocols=protocols, ping_interval=None):
            await asyncio.gather(self._beat(), self._watch())

    async def _beat(self) -> None:
        while True:
            for name in self._names:
                await self._say_ready(name)
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _say_ready(self, name: str) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}}
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": at}
        room = {"cpu": "100000", "memory": "100Ti", "pods": "100000"}
        status = {
            "conditions": [{**ready, "lastTransitionTime": at}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "allocatable": room,
            "capacity": room,
        }
        answer = await self._ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        if answer is not None and answer.status_code == httpx.codes.NOT_FOUND:
            await self._ask("POST", "/api/v1/nodes", node)
            await self._ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    async def _ask(self, method: str, path: str, content: Mapping[str, Any]) -> httpx.Response | None:
        """One call, again and again while the server is away or busy."""
        for _ in range(200):
            with suppress(httpx.HTTPError):
                answer = await self._api.request(
                    method, path, content=json.dumps(content), headers=_PATCH if method == "PATCH" else {}
                )
                if answer.status_code not in _RETRIED:
                    return answer
            await asyncio.sleep(0.3)
        return None

    async def _watch(self) -> None:
        while True:
            try:
                async for event in self._events():
                    task = asyncio.create_task(self._tend(event["type"], event["object"]))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except (httpx.HTTPError, KeyError, ValueError):
                await asyncio.sleep(0.5)

    async def _events(self) -> AsyncIterator[dict[str, Any]]:
        listed = (await self._api.get("/api/v1/pods", params={"resourceVersion": "0"})).json()
        for pod in listed["items"]:
            yield {"type": "ADDED", "object": pod}
        params = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": "600"}
        async with self._api.stream("GET", "/api/v1/pods", params=params, timeout=None) as answer:
            async for line in answer.aiter_lines():
                yield json.loads(line)

    async def _tend(self, kind: str, pod: Mapping[str, Any]) -> None:
        """Let a Pod be as it is asked to be."""
        metadata, spec = pod["metadata"], pod["spec"]
        name, place = metadata["name"], f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if spec.get("nodeName") not in self._names:
            return
        if kind == "DELETED" or "deletionTimestamp" in metadata:
            self._images.pop(name, None)
            if kind != "DELETED":
                async with self._gate:
                    await self._ask("DELETE", place, {"gracePeriodSeconds": 0})
            return
        asked, there = {one["name"]: one["image"] for one in spec["containers"]}, self._images.setdefault(name, {})
        told = {one["name"]: one for one in (pod.get("status") or {}).get("containerStatuses") or ()}
        if not there:  # this program was started anew
            there |= {
                each: (asked[each], one["containerID"]) for each, one in told.items() if "running" in one["state"]
            }
        changed = [container for container in asked if there.get(container, ("", ""))[0] != asked[container]]
        if not changed:
            return
        for container in changed:
            first = container not in there
            there[container] = (asked[container], first_id(name, container) if first else self._new_id())
            self._running.pop((name, container), None)
        async with self._gate:
            phase = "Succeeded" if spec.get("restartPolicy") == "Never" else "Running"
            await self._ask("PATCH", f"{place}/status", {"status": {**_status(there), "phase": phase}})

    def _new_id(self) -> str:
        return f"containerd://{next(self._ids)}-{time.time_ns()}"

    async def _exec(self, socket: ServerConnection) -> None:
        """A program in a container: that of slots, or one that looks at a session."""
        assert socket.request
        place = urlsplit(socket.request.path)
        pod, slot = place.path.split("/")[3:5]
        words = parse_qs(place.query, keep_blank_values=True)["command"][4:]
        rest = await _input(socket)
        length, _, rest = rest.partition(b"\n")
        said = b""
        if words[:2] == ["/bin/sh", "/run/refit/bin/slot"]:
            while len(rest) < int(length):
                rest += await _input(socket)
            said = self._in_slot((pod, slot), words[2:])
        elif "-c" in words and "exec(input())" in words[-1]:
            await _answer(socket, rest)
        if said:
            await socket.send(bytes([_OUTPUT]) + said)
        await socket.send(bytes([_STATUS]) + json.dumps({"status": "Success"}).encode())

    def _in_slot(self, place: tuple[str, str], words: list[str]) -> bytes:
        if words[0] == "run-next":
            self._running[place] = words[3]
        if words[0] == "stop":
            self._running.pop(place, None)
        return f"{self._running.get(place, '')}\n".encode() if words[0] == "state" else b""


async def _answer(socket: ServerConnection, rest: bytes) -> None:
    """Be what looks at a session: a line, an answer; a line, an answer, until nobody asks any more."""
    program = True
    with suppress(ConnectionClosed):
        while True:
            while b"\n" not in rest:
                rest += await _input(socket)
            line, _, rest = rest.partition(b"\n")
            question = {} if program else json.loads(line)
            runs = "run" in question
            await asyncio.sleep(question.get("seconds", 0.0))  # a look lasts
            told = json.dumps({"code": 0, "said": "", "why": ""} if runs else {"at": time.time()})
            await socket.send(bytes([_OUTPUT]) + f"{'ready' if program else told}\n".encode())
            program = False


async def _input(socket: ServerConnection) -> bytes:
    while True:
        message = await socket.recv(decode=False)
        if message[0] == _INPUT:
            return bytes(message[1:])


def _status(there: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    containers = [
        {
            "name": name,
            "image": image,
            "imageID": image,
            "containerID": id,
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": at}},
            "lastState": {},
        }
        for name, (image, id) in there.items()
    ]
    conditions = [
        {"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {"phase": "Running", "podIP": "127.0.0.1", "conditions": conditions, "containerStatuses": containers}


def _client(kubeconfig: Path) -> httpx.AsyncClient:
    told = yaml.safe_load(kubeconfig.read_text())
    cluster, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    context.load_cert_chain(user["client-certificate"], user["client-key"])
    return httpx.AsyncClient(base_url=cluster["server"], verify=context, timeout=30, trust_env=False)


def _certificate(pki: Path) -> tuple[Path, Path]:
    """A certificate of these kubelets by the cluster's own authority, and its key."""
    key, request, made = (pki / f"simulated.{end}" for end in ("key", "csr", "crt"))
    names = pki / "simulated.ext"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    make = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*make, "-keyout", key, "-out", request, "-subj", "/CN=simulated"], check=True, capture_output=True)
    sign = [
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        pki / "ca.crt",
        "-CAkey",
        pki / "ca.key",
        "-CAcreateserial",
    ]
    subprocess.run([*sign, "-out", made, "-days", "3650", "-extfile", names], check=True, capture_output=True)
    return made, key


if __name__ == "__main__":
    asyncio.run(_Nodes(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run())
