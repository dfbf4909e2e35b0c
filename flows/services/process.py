"""Starting a service, finding it again, asking whether it answers, ending it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from flows.core import outside
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.programs import command, process_records, program_output
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.host import sockets
from flows.services.service import Service
from flows.services.supervision import NOTES, Supervisor

# One that ends is noticed at once. One that takes long is at work: the first start of Prefect makes its database, which
# takes minutes on a machine with a lot to do.
START_SECONDS = 600.0
ANSWER_SECONDS = 90.0  # for one that has started before
END_SECONDS = 15.0
LET_GO_SECONDS = 2.0
INSTALL_SECONDS = 300.0
REQUEST_SECONDS = 5.0
_ANSWER_BYTES = 1 << 16
_TAIL = 15


def alone(settings: Settings) -> AbstractContextManager[None]:
    """Only one process at a time starts and ends the services of a home."""
    return one_at_a_time(settings.folder("services") / "lock")


def find(service: Service) -> psutil.Process | None:
    """Its running process, whoever started it: `up`, or systemd by our unit."""
    for noted in process_records.noted(notes(service)):
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(noted.pid)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            # Two homes may have the same arguments, never the same folder. The first word may be a name or a path.
            if tuple(process.cmdline()[1:]) == service.argv[1:] and process.cwd() == str(service.folder):
                return process
    return None


def as_wanted(service: Service) -> bool:
    """Whether it runs, with these settings. One that `up` did not start is not judged."""
    if not process_records.noted(notes(service)):
        return find(service) is not None
    running, started = find(service), service.folder / "started-with"
    if running is None or not supervisor_of(service).keeps(running.pid):
        return False
    return started.is_file() and started.read_text() == _fingerprint(service)


def age(process: psutil.Process) -> float:
    """Seconds since its start."""
    with suppress(psutil.NoSuchProcess):
        return time.time() - process.create_time()
    return 0.0


def refuse_taken_port(service: Service) -> None:
    """Raise RefitError if somebody else listens on the service's port."""
    if (port := service.port) is None:
        return
    # A program that has just ended may hold it until the last of its threads has gone.
    if wait_until(lambda: _are_free(service, port), seconds=LET_GO_SECONDS):
        return
    holder = _holder(port)
    raise RefitError(
        f"Port {service.port} is taken: the {service.title} can't start.",
        why=f"It is held by {holder}.",
        hint=f"end that program, or choose another port: `{service.setting}` in settings.yaml, "
        f"or REFIT_{service.setting.upper()}=….",
    )


def _are_free(service: Service, port: int) -> bool:
    return _is_free(service.address, port) and (
        not service.second_address or _is_free(service.second_address, port, is_needed=False)
    )


def _is_free(address: str, port: int, *, is_needed: bool = True) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            if not is_needed:
                return True
            raise RefitError(
                f"Nothing can listen on {address}:{port}.",
                why=str(error.strerror),
                hint="check `bind_address` in settings.yaml.",
            ) from None
    return True


def _holder(port: int) -> str:
    """The program that listens on a port, in words; another user's can be named by root alone."""
    for connection in psutil.net_connections("tcp"):
        if (
            connection.laddr
            and connection.laddr.port == port
            and connection.status == psutil.CONN_LISTEN
            and connection.pid
        ):
            with suppress(psutil.Error):
                process = psutil.Process(connection.pid)
                words = program_output.redacted(" ".join(process.cmdline()))
                return f"{process.name()} (pid {process.pid}: {words[:120]})"
    return "a program of another user (`sudo ss -ltnp` names it)"


def prepare(service: Service) -> None:
    """Write the files that the service reads, and its variables for systemd; only their owner can read them."""
    lines = {**service.inherited, **service.environment}.items()
    written = {
        **service.files,
        service.folder / "environment": "".join(f"{name}={json.dumps(value)}\n" for name, value in lines),
    }
    for path, text in written.items():
        write_whole(path, text, private=True)
    _install(service)


def _install(service: Service) -> None:
    """Install what it is made of, unless that is there already."""
    digest = hashlib.sha256("\0".join(service.files.values()).encode()).hexdigest()
    done = service.folder / "installed"
    if not service.install or (done.is_file() and done.read_text() == digest):
        return
    done.unlink(missing_ok=True)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    try:
        command.run(service.install, cwd=service.folder, env={**service.inherited, **proxies}, limit=INSTALL_SECONDS)
    except ProgramFailed as error:
        raise RefitError(
            f"The {service.title} can't be installed.",
            why=error.tail,
            hint="check the network and its proxy, and `npm_registry` and `ca_bundle` in settings.yaml; "
            f"`{service.name}: false` there goes without.",
        ) from None
    done.touch(mode=0o600)
    write_whole(done, digest)


def start(service: Service) -> None:
    """Let the supervisor start it; its log begins anew, the one of its last run is kept beside it."""
    end(service)
    prepare(service)
    if service.log.exists():
        service.log.replace(service.log.with_suffix(".log.1"))
    write_whole(service.folder / "started-with", _fingerprint(service))
    service.log.touch(mode=0o600)
    supervisor_of(service).start(service)


def answers(service: Service) -> bool:
    """Whether it does its work now. Another user's program in its place is told no login, and doesn't do its work."""
    place = urlsplit(service.health)
    if service.login and sockets.is_anothers(place.hostname or "", place.port or 0):
        return False
    folder = os.open(service.folder, os.O_RDONLY)
    try:
        # The path of a socket must be short, and that of the folder may be long.
        socket = f"/proc/self/fd/{folder}/{service.socket}" if service.socket else None
        way = httpx.HTTPTransport(uds=socket, verify=outside.trusted_by_default(service.health))
        # A proxy of the shell has no business on loopback.
        with httpx.Client(trust_env=False, timeout=REQUEST_SECONDS, auth=service.login, transport=way) as client:
            outside.keep_deadlines(client)  # somebody else may listen there, and never end
            with outside.within(REQUEST_SECONDS), client.stream("GET", service.health) as response:
                content = b"".join(outside.beginning(response, _ANSWER_BYTES))
        names = ("content-type", "docker-distribution-api-version")
        headers = {name: response.headers[name] for name in names if name in response.headers}
        answer = httpx.Response(response.status_code, headers=headers, content=content)
        return answer.status_code == httpx.codes.OK and service.healthy(answer)
    except (httpx.HTTPError, ValueError):
        return False
    finally:
        os.close(folder)


def wait_until_answering(service: Service) -> None:
    """Return when it answers; RefitError if it ends before, or doesn't answer in time."""

    def there() -> bool:
        if answers(service):
            return True
        if find(service) is None:
            end(service)  # the supervisor would try it for minutes
            raise _failed(service, "ended right after its start")
        return False

    if not wait_until(there, seconds=START_SECONDS):
        raise _failed(service, f"does not answer after {START_SECONDS:g} s")


def _failed(service: Service, problem: str) -> RefitError:
    with suppress(OSError):
        lines = service.log.read_text(errors="replace").splitlines()[-_TAIL:]
        tail = "The last lines that it wrote:\n" + "\n".join(f"  {program_output.redacted(line)}" for line in lines)
        return RefitError(f"The {service.title} {problem}.", why=tail, hint=f"the whole log is {service.log}.")
    return RefitError(f"The {service.title} {problem}.", hint="run `refit up`.")


def end(service: Service) -> bool:
    """End it if `up` started it, with everything that it started; whether it ran."""
    ran = bool(process_records.noted(notes(service)))
    supervisor_of(service).let_go(service)
    return process_records.end_recorded(notes(service), END_SECONDS) > 0 or ran


def notes(service: Service) -> Path:
    """The folder in which its programs are noted: `end` ends them all."""
    return service.folder / NOTES


def supervisor_of(service: Service) -> Supervisor:
    """The supervisor that starts it again whenever it dies."""
    return Supervisor(service.folder.parent)


def _fingerprint(service: Service) -> str:
    """Changes when the service has to be started anew to be what it should be. Secrets can't be read from it."""
    chosen = {name: value for name, value in service.environment.items() if name not in service.passing}
    files = {os.fspath(path): text for path, text in service.files.items()}
    return hashlib.sha256(json.dumps([service.argv, chosen, files], sort_keys=True).encode()).hexdigest()
