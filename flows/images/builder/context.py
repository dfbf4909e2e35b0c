"""The folder that a build sees beside its parent: the stage's files, and those of the building machine.

Authorities, index, proxies and folders of wheels reach a build through a folder that is mounted read-only at `/mnt`:
every base has that path, and no isolation hides it, so nothing of it stays in a layer, the configuration or history.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import uv

from flows.core.settings import Settings
from flows.images.builder.cache import apt_options, dnf_options, offer
from flows.locks import apt

# Where the folder with the machine's own things is mounted.
MOUNT = "/mnt"
# The folder in it with the wheels that were made for a stage.
BUILT = "built"
_AUTHORITIES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below `folder`, all readable, whatever the umask is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"a stage's file lies outside of its context: {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(0o755)


def own_things(folder: Path, settings: Settings, suite: str = "") -> tuple[str, ...]:
    """Fill the folder that builds see at `MOUNT` with what is this machine's own; returns the volumes to mount.

    With a `suite`, apt takes that distribution's release from the mirror of the settings, whatever the image says.
    """
    wheels = [f"{MOUNT}/wheels/{number}" for number, _ in enumerate(settings.wheel_folders)]
    variables = {"PIP_FIND_LINKS": " ".join(wheels), "PIP_INDEX_URL": settings.pip_index_url.get_secret_value()}
    variables |= {"UV_FIND_LINKS": ",".join(wheels), "UV_DEFAULT_INDEX": variables["PIP_INDEX_URL"]}
    variables["NPM_CONFIG_REGISTRY"] = settings.npm_registry
    authorities = f"{MOUNT}/ca.pem" if settings.ca_bundle else ""
    dnf = {**dnf_options(MOUNT, settings), "proxy": settings.apt_proxy, "sslcacert": authorities}
    variables["DNF_OPTIONS"] = " ".join(f"--setopt={name}={value}" for name, value in dnf.items() if value)
    cached, caches = offer(folder, MOUNT, settings)
    variables |= cached
    proxy = [f'Acquire::http::Proxy "{settings.apt_proxy}";'] if settings.apt_proxy else []
    options = [*apt_options(MOUNT), *proxy]
    if settings.ca_bundle:
        shutil.copyfile(settings.ca_bundle, folder / "ca.pem")
        variables |= dict.fromkeys(_AUTHORITIES, f"{MOUNT}/ca.pem")
        options.append(f'Acquire::https::CaInfo "{MOUNT}/ca.pem";')
    if suite:
        (folder / "sources.list").write_text(apt.sources(suite, settings.debian_mirror))
        options += [f'Dir::Etc::SourceList "{MOUNT}/sources.list";', 'Dir::Etc::SourceParts "/dev/null";']
    (folder / "apt.conf").write_text("\n".join(options) + "\n")
    variables["APT_CONFIG"] = f"{MOUNT}/apt.conf"
    (folder / "uv").touch()
    for number, _ in enumerate(wheels):
        (folder / "wheels" / str(number)).mkdir(parents=True)
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()) if value]
    (folder / "env.sh").write_text("".join(exports))
    further = {uv_program(): f"{MOUNT}/uv", **dict(zip(settings.wheel_folders, wheels, strict=True))}
    read_only = (f"{source}:{target}:ro" for source, target in further.items())
    return f"{folder}:{MOUNT}:ro", *read_only, *(f"{source}:{target}" for source, target in caches.items())


@cache
def uv_program() -> Path:
    """The uv that comes with Refit; it needs nothing of the system that it runs on."""
    return Path(uv.find_uv_bin()).resolve()
