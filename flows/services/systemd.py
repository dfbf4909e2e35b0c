"""The embedded services as systemd units, for machines on which they shall start at boot."""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path

from flows.services.service import Service

FOLDER = Path("/etc/systemd/system")


def unit(service: Service) -> str:
    """The text of the unit. The service's variables are not in it: systemd shows units to everybody."""
    program, *arguments = service.argv
    needed = " ".join(f"refit-{name}.service" for name in service.after)
    lines = [
        "[Unit]",
        f"Description=Refit: {service.title}",
        f"After=network.target {needed}".rstrip(),
        *([f"Wants={needed}"] if needed else []),
        "",
        "[Service]",
        "Type=exec",
        f"User={getpass.getuser()}",
        f"WorkingDirectory={_literal(str(service.folder))}",
        f"EnvironmentFile={_literal(str(service.folder / 'environment'))}",
        f"ExecStart={' '.join(_quoted(word) for word in (shutil.which(program) or program, *arguments))}",
        "Restart=on-failure",
        "RestartSec=2",
        # The programs of a flow run have to end with it.
        "KillMode=control-group",
        "TimeoutStopSec=20",
        f"StandardOutput=append:{_literal(str(service.log))}",
        "StandardError=inherit",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """One word of a command line, as systemd.service(5) reads it."""
    escaped = _literal(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
