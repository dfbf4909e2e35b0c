"""Makes virtual environments of a home anew that were made for another Python than the session's image has now.

All of it runs in the session's container as its user: a home is touched with its owner's rights only. The old
environment stays beside the new one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from flows.authoring.capture.decide import wishes
from flows.authoring.capture.facts import OWN, Place
from flows.compatibility.capture import installed
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line, some
from flows.sessions.engine import Engine
from flows.sessions.model import Session

# Of `pip --user`: no environment, and the scan says how its packages are installed again.
_USER = ".local"
SECONDS = 600.0
MOST_TOLD = 1 << 20  # bytes
_THERE = TypeAdapter(dict[str, str])
# The name of the file by which an environment has the image's packages below its own.
OVER_IMAGE = "image.pth"
# In the old environment, until the new one has all that can be had: an attempt that was killed is taken up again.
_UNFINISHED = "refit-unfinished"
_MAKE = f"""
cd "$HOME"; place=./$1; kept=$place.python$2; again=yes
[ -d "$kept" ] && [ ! -L "$kept" ] && [ -f "$kept/{_UNFINISHED}" ] || {{
again=
[ ! -L "$place" ] && [ -f "$place/pyvenv.cfg" ] || {{ echo "it is no environment any more" >&2; exit 1; }}
[ ! -e "$kept" ] && [ ! -L "$kept" ] || {{ echo "$kept is in the way" >&2; exit 1; }}
: >"$place/{_UNFINISHED}"
mv -T -- "$place" "$kept"
}}
own=; ! grep -qi '^include-system-site-packages *= *true' "$kept/pyvenv.cfg" || own=--system-site-packages
over=; for file in "$kept"/lib/python3*/site-packages/{OVER_IMAGE}; do [ ! -f "$file" ] || over=yes; done
if ! python3 -m venv $own "$place"; then
  [ -n "$again" ] || {{ rm -rf -- "$place"; mv -T -- "$kept" "$place"; rm -f -- "$place/{_UNFINISHED}"; }}
  exit 1
fi
[ -z "$over" ] || {{
  into=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$into/{OVER_IMAGE}"
}}
"""
_PIP = 'cd "$HOME"; place=./$1; shift; exec "$place/bin/python" -m pip -q --no-input --no-color install -- "$@" 1>&2'
_LEFT = f'cd "$HOME"; for kept; do [ ! -f "./$kept/{_UNFINISHED}" ] || printf "%s\\n" "$kept"; done'
_DONE = f'cd "$HOME"; rm -f -- "./$1.python$2/{_UNFINISHED}"'
_LIST = """
cd "$HOME"; exec "./$1/bin/python" -c '
import json, importlib.metadata as metadata
print(json.dumps({one.metadata["Name"]: one.version for one in metadata.distributions()}))'
"""


@dataclass(frozen=True)
class Remade:
    """An environment after a move onto another Python.

    Attributes:
        path: below the home.
        python: minor version of the Python that it was made for.
        there: name → version of the packages that were asked for and are there again.
        lost: name → why it isn't there again.
        problem: why it is as it was; empty: it was made anew.
    """

    path: str
    python: str
    there: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def __str__(self) -> str:
        """The same for its person, as a sentence."""
        if self.problem:
            return f"The environment {self.path} is still of Python {self.python}: {self.problem}."
        came = f"{len(self.there)} of {len(self.there) + len(self.lost)} packages are there again"
        gone = f"; not there: {some([f'{name} ({why})' for name, why in self.lost.items()])}" if self.lost else ""
        return (
            f"The environment {self.path} was made anew: {came}{gone}. The old one is {self.path}.python{self.python}."
        )


def remake(engine: Engine, session: Session) -> tuple[Remade, ...]:
    """Make each environment of a session's home anew that is of another Python than its image, from what was asked for.

    Raises:
        RefitError: the session doesn't run, or gives no report of its environments.
    """
    seen, until = installed(engine, session), time.monotonic() + SECONDS
    others = [place for place in seen.places if _is_of_another(place, seen.python) and not _is_kept(place)]
    others += _unfinished(engine, session, seen.places, until)
    twice = {place.path for place in others if sum(other.path == place.path for other in seen.places) > 1}
    return tuple(_remade(engine, session, place, until) for place in others if place.path not in twice)


def summary(remade: Sequence[Remade]) -> str:
    """The same for their person, a line for each. Pure."""
    return "\n".join(on_a_line(str(environment)) for environment in remade)


def _is_of_another(place: Place, python: str) -> bool:
    path = PurePosixPath(place.path)
    usable = place.python and not path.is_absolute() and ".." not in path.parts and place.path not in (OWN, _USER)
    return bool(usable) and place.python != python


def _is_kept(place: Place) -> bool:
    """Whether an environment is one that an earlier move has kept beside the new one."""
    return place.path.endswith(f".python{place.python}")


def _unfinished(engine: Engine, session: Session, places: Sequence[Place], until: float) -> list[Place]:
    """The environments that a killed attempt was about to make anew, with the packages of the old ones."""
    kept = {place.path: place for place in places if _is_kept(place)}
    left = _run(engine, session, _LEFT, until, *kept).splitlines() if kept else []
    return [replace(kept[path], path=path.removesuffix(f".python{kept[path].python}")) for path in left if path in kept]


def _remade(engine: Engine, session: Session, place: Place, until: float) -> Remade:
    packages, lost = wishes(place.packages)
    remade = Remade(place.path, place.python)
    try:
        _run(engine, session, _MAKE, until, place.path, place.python)
    except RefitError as error:
        return Remade(place.path, place.python, problem=_reason(error))
    exact = [f"{name}=={version}" for name, version in packages.items()]
    problems = _install(engine, session, place.path, exact, [*packages], until)
    installed = _there(engine, session, place.path, until)
    with suppress(RefitError):  # then the next attempt finds all there
        _run(engine, session, _DONE, until + 60, place.path, place.python)
    gone = {name: problems.get(name, "it can't be had for this Python") for name in packages if name not in installed}
    return Remade(remade.path, remade.python, {n: installed[n] for n in packages if n in installed}, {**gone, **lost})


def _install(
    engine: Engine, session: Session, path: str, exact: Sequence[str], names: Sequence[str], until: float
) -> dict[str, str]:
    """Install packages in the versions that they had, else in other ones, else each that can be had by itself.

    Returns the reasons of those that can't be had, by name.
    """
    for attempt in (exact, names):
        try:
            if attempt:
                _run(engine, session, _PIP, until, path, *attempt)
        except RefitError:
            continue
        return {}
    problems = {}
    for name in names:
        try:
            _run(engine, session, _PIP, until, path, name)
        except RefitError as error:
            problems[name] = _reason(error)
    return problems


def _there(engine: Engine, session: Session, path: str, until: float) -> dict[str, str]:
    try:
        present = _THERE.validate_json(_run(engine, session, _LIST, until + 60, path))
    except (RefitError, ValidationError):
        return {}
    return {str(canonicalize_name(name)): version for name, version in present.items()}


def _run(engine: Engine, session: Session, script: str, until: float, *arguments: str) -> str:
    if (limit := until - time.monotonic()) <= 0:
        raise RefitError(f"all of it may take {SECONDS:.0f} s")
    return engine.execute(session.container, ["sh", "-euc", script, "sh", *arguments], limit=limit, most=MOST_TOLD)


def _reason(error: RefitError) -> str:
    """The last line that says why, as text."""
    lines = [line.strip() for line in (error.why or error.what).splitlines() if line.strip()]
    return on_a_line(lines[-1])[:200] if lines else "nobody knows why"
