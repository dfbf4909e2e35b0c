"""The supervisor of a home (supervisord, of the package `supervisor`): it starts services, and starts again what died.

A service is its child and notes itself, so that it is found and ended as any program of ours (see `launcher`). It runs
on where the supervisor is killed; `up` starts both anew then. All paths in the supervisor's files are relative to its
folder: none needs quotes, and the path of a socket must be short.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import xmlrpc.client
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.core import outside
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.programs import process_records, spawn
from flows.core.programs.command import ProgramMissing
from flows.core.waiting import wait_until
from flows.services import launcher
from flows.services.service import Service

FOLDER, NOTES = "supervisor", "processes"
START_SECONDS = 60.0  # for the supervisor to answer, and for a launcher to note itself, where all cores are busy
_REQUEST_SECONDS = 10.0
_END_SECONDS = 20.0
_ANSWER_BYTES = 1 << 20
_LOG_BYTES = 4 << 20
# Faults of supervisor's XML-RPC that say that there is nothing to be stopped.
_BAD_NAME, _NOT_RUNNING = 10, 70
# A state of its processes: told to end, and not ended yet.
_STOPPING = 40
# More than its `stopwaitsecs`, after which it kills.
_LET_GO_SECONDS = 30.0
# Starts of a service that ends within a second: with a second more between two of them each time, three minutes.
_ATTEMPTS = 20
# Its own files are its owner's alone; services have the umask of the command that starts them.
_PRIVATELY = ("sh", "-c", 'umask 077 && exec "$@"', "sh")
_CONFIGURATION = """\
[supervisord]
nodaemon=true
silent=true
logfile=log
logfile_maxbytes={bytes}
logfile_backups=1
pidfile=pid

[unix_http_server]
file=/proc/self/cwd/socket
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[include]
files=programs/*.ini
"""
_PROGRAM = """\
[program:{name}]
command={command}
autostart=false
autorestart=true
startsecs=1
startretries={attempts}
umask={umask:03o}
stopwaitsecs=15
stdout_logfile=NONE
stderr_logfile=NONE
"""


class Supervisor:
    """The supervisor of the services whose folders stand beside its own.

    Args:
        services: the folder of all of them.
    """

    def __init__(self, services: Path) -> None:
        self.folder = services / FOLDER

    def start(self, service: Service) -> None:
        """Start a service that doesn't run, and start it again whenever it ends, until it is let go.

        Raises:
            ProgramMissing: it is not installed.
            RefitError: the supervisor doesn't do its part.
        """
        environment = {**service.inherited, **service.environment}
        if shutil.which(service.argv[0], path=environment.get("PATH")) is None:
            raise ProgramMissing(service.argv[0])
        notes = service.folder / NOTES
        launch = {"argv": service.argv, "environment": environment, "cwd": str(service.folder)}
        text = json.dumps({**launch, "log": str(service.log), "notes": str(notes)})
        write_whole(service.folder / launcher.LAUNCH, text, private=True)
        self._be_there(service)
        if not wait_until(lambda: self._has_let_go(service), seconds=_LET_GO_SECONDS):
            raise self._fault(f"It has not ended the {service.title} within {_LET_GO_SECONDS:g} s.")
        self._know(service)
        self._ask("startProcess", service.name, False)
        if not wait_until(lambda: _has_begun(notes), seconds=START_SECONDS, pause=0.02):
            raise self._fault(f"It has not started the {service.title} within {START_SECONDS:g} s.")

    def let_go(self, service: Service) -> None:
        """Tell a service to end, and start it no more; nothing, where no supervisor runs."""
        if not self._running:
            return
        try:
            self._ask("stopProcess", service.name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in (_BAD_NAME, _NOT_RUNNING):
                raise self._fault(fault.faultString) from None

    def _has_let_go(self, service: Service) -> bool:
        """Whether the program that was told to end has; a start before that would do nothing, and say nothing.

        A program that the supervisor was just starting again may miss the signal, and notes itself only now: it is
        ended here, and not by the supervisor, which kills it later, when it is taken for the new one.
        """
        try:
            stops = self._ask("getProcessInfo", service.name)["state"] == _STOPPING
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != _BAD_NAME:
                raise self._fault(fault.faultString) from None
            stops = False
        process_records.end_recorded(service.folder / NOTES, _END_SECONDS)
        return not stops

    def keeps(self, pid: int) -> bool:
        """Whether a process is a child of the supervisor."""
        try:
            return psutil.Process(pid).ppid() in {process.pid for process in self._running}
        except psutil.NoSuchProcess:
            return False

    def end(self) -> None:
        """End the supervisor, and whatever it still keeps."""
        process_records.end_recorded(self.folder / NOTES, _END_SECONDS)

    @property
    def _running(self) -> tuple[process_records.ProcessId, ...]:
        return process_records.noted(self.folder / NOTES)

    def _be_there(self, service: Service) -> None:
        """Start the supervisor unless it runs."""
        if self._running and self._answers():
            return
        self.end()
        (self.folder / "programs").mkdir(mode=0o700, parents=True, exist_ok=True)
        text = _CONFIGURATION.format(bytes=_LOG_BYTES)
        write_whole(self.folder / "supervisord.conf", text, private=True)
        argv = (*_PRIVATELY, sys.executable, "-m", "supervisor.supervisord", "-c", "supervisord.conf")
        output, notes = self.folder / "output", self.folder / NOTES
        spawn.start(argv, env=service.inherited, cwd=self.folder, log=output, notes=notes)
        if not wait_until(self._answers, seconds=START_SECONDS):
            raise self._fault(f"It does not answer within {START_SECONDS:g} s.")

    def _know(self, service: Service) -> None:
        """Let the supervisor know of a service, as it is started by this Refit."""
        words = (sys.executable, "-I", launcher.__file__, os.path.relpath(service.folder, self.folder))
        command = shlex.join(words).replace("%", "%%")
        umask = os.umask(0o077)
        os.umask(umask)
        text = _PROGRAM.format(name=service.name, command=command, attempts=_ATTEMPTS, umask=umask)
        write_whole(self.folder / "programs" / f"{service.name}.ini", text, private=True)
        [[added, changed, _]] = self._ask("reloadConfig")
        if service.name in changed:
            self._ask("removeProcessGroup", service.name)
        if service.name in (*added, *changed):
            self._ask("addProcessGroup", service.name)

    def _answers(self) -> bool:
        try:
            self._ask("getState")
        except RefitError:
            return False
        return True

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of its XML-RPC.

        Raises:
            RefitError: it doesn't answer.
            xmlrpc.client.Fault: it refuses.
        """
        body = xmlrpc.client.dumps(arguments, f"supervisor.{method}")
        try:
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                way = httpx.HTTPTransport(uds=f"/proc/self/fd/{folder}/socket", verify=outside.NOBODY)
                with httpx.Client(trust_env=False, timeout=_REQUEST_SECONDS, transport=way) as client:
                    outside.keep_deadlines(client)
                    request = client.build_request("POST", "http://supervisor/RPC2", content=body)
                    request.headers["Content-Type"] = "text/xml"
                    with outside.within(_REQUEST_SECONDS):
                        answer = client.send(request, stream=True)
                        content = b"".join(outside.whole(answer, _ANSWER_BYTES))
            finally:
                os.close(folder)
        except (OSError, httpx.HTTPError) as error:
            raise self._fault(str(error) or type(error).__name__) from None
        (result,), _ = xmlrpc.client.loads(content.decode())
        return result

    def _fault(self, why: str) -> RefitError:
        return RefitError(
            "The supervisor of the services doesn't work.",
            why=why,
            hint=f"its log is {self.folder / 'log'}; `refit down` ends it, and `refit up` starts it anew.",
        )


def started(services: Path) -> tuple[str, ...]:
    """The names of all services that run and that `up` started, whatever the settings ask for now."""
    folders = sorted(folder for folder in services.glob(f"*/{NOTES}") if folder.parent.name != FOLDER)
    return tuple(folder.parent.name for folder in folders if process_records.noted(folder))


def end_started(services: Path) -> tuple[str, ...]:
    """End the supervisor, and all services that `up` started and that still run; the names of those."""
    names = started(services)
    Supervisor(services).end()
    # One that the supervisor was just starting may have noted itself only then.
    names = tuple(dict.fromkeys((*names, *started(services))))
    for name in names:
        process_records.end_recorded(services / name / NOTES, _END_SECONDS)
    return names


def kept(services: Path) -> dict[str, bool]:
    """Name → whether the supervisor would start it again; of each service that runs and that `up` started.

    Those of systemd are not among them: systemd starts them again.
    """
    supervisor, folders = Supervisor(services), sorted(services.glob(f"*/{NOTES}"))
    running = {folder.parent.name: process_records.noted(folder) for folder in folders}
    return {
        name: any(supervisor.keeps(process.pid) for process in processes)
        for name, processes in running.items()
        if processes and name != FOLDER
    }


def _has_begun(notes: Path) -> bool:
    """Whether a program has noted itself: it may have ended since."""
    return notes.is_dir() and any(note.name.isdigit() for note in notes.iterdir())
