"""The part of the `refit` command that is about people: who may log in to the Hub."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from flows.cli.console import Json, Yes, out, show_data
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.core.database import open_database
    from flows.core.settings import Settings, load
    from flows.core.settings.hub_login import By
    from flows.core.waiting import wait_until
    from flows.gateway import routes
    from flows.sessions.people.person_keys import PersonKeys
    from flows.sessions.preferences import read_duration
    from flows.web.hub import accounts
    from flows.web.people.client import HubClient

_END_SECONDS = 120.0
_POLL_SECONDS = 0.5
Person = Annotated[str, typer.Argument(metavar="NAME", help="Name with which the person logs in.")]

app = typer.Typer(no_args_is_help=True, help="People who log in to JupyterHub and start their own sessions.")


@app.command("invite")
def invite(
    name: Person,
    valid: Annotated[str, typer.Option(metavar="DURATION", help="How long the link works: 30m, 2h, 7d.")] = "7d",
    admin: Annotated[bool, typer.Option("--admin", help="The person administers the Hub.")] = False,
) -> None:
    """Print a link with which a person chooses a password and is logged in; it works once.

    Where `hub_login` says that people log in elsewhere, there is no link: the person may come in from now on.
    """
    settings = hub_settings()
    if settings.hub_login.by is not By.password or settings.other_hub.api:
        _make_account(settings, name, admin=admin)
        return
    code = accounts.invite(accounts.folder(settings), name, read_duration(valid).total_seconds(), admin=admin)
    link = f"{settings.public_url}{routes.HUB}/invite?code={quote(code)}"
    out.print(f"Give this link to {name}. It works once, within {valid}; an older one of theirs doesn't work any more.")
    out.print(link, highlight=False, soft_wrap=True)


def _make_account(settings: Settings, name: str, *, admin: bool) -> None:
    """Let somebody in who has a password elsewhere."""
    if problem := accounts.why_no_name(name):
        raise RefitError(f"{name!r} can't be the name of a person.", why=problem, hint="choose another name.")
    HubClient(settings).add(name, admin=admin)
    policy = settings.hub_login
    where = "this machine" if policy.by is By.pam else policy.service
    where = settings.other_hub.public or where
    out.print(f"{name} may come in, with the login of {where}: {settings.public_url}{routes.HUB}/", soft_wrap=True)


@app.command("list")
def list_people(as_json: Json = False) -> None:
    """List the people who have an account, with their servers."""
    people = HubClient(hub_settings()).people()
    rows = (
        (
            person.name,
            "yes" if person.admin else "",
            str(sum(person.servers.values())),
            person.last_seen[:16].replace("T", " "),
        )
        for person in people
    )
    show_data(as_json, people, tables.table("People", ("name", "admin", "running", "last seen (UTC)"), rows))


@app.command("remove")
def remove(name: Person, yes: Yes = False) -> None:
    """Stop a person's sessions and remove their account; sessions and homes stay, and can be given to others."""
    settings = hub_settings()
    hub = HubClient(settings)
    account = next((account for account in hub.people() if account.name == name), None)
    if account is None:
        raise RefitError(f"Nobody called {name!r} has an account.", hint="`refit user list` shows who has one.")
    if not yes:
        typer.confirm(f"Stop the sessions of {name!r} and remove the account?", abort=True)
    for server in [server for server, runs in account.servers.items() if runs]:
        hub.stop(name, server)
    _wait_until_stopped(hub, name)
    hub.remove(name)
    PersonKeys(open_database(settings.database)).forget(name)  # whatever the Hub's authenticator does
    out.print(f"{name} has no account any more. `refit session owner` gives a session to somebody else.")


def _wait_until_stopped(hub: HubClient, name: str) -> None:
    def stopped() -> bool:
        return not any(runs for person in hub.people() if person.name == name for runs in person.servers.values())

    if not wait_until(stopped, seconds=_END_SECONDS, pause=_POLL_SECONDS):
        raise RefitError(f"A session of {name} doesn't stop.", hint="`refit session list` shows it; try again.")


def why_no_hub(settings: Settings) -> str:
    """Why nobody can log in where `hub_wanted` is false."""
    if settings.prefect_server:
        return "It runs on the machine of `prefect_server`, if anywhere."
    if not settings.gateway:
        return "It needs the gateway, and `gateway` is false."
    return "Sessions run on Kubernetes, and `hub` isn't true." if settings.hub is None else "`hub` is false."


def hub_settings() -> Settings:
    """The settings, if people can log in here.

    Raises:
        RefitError: there is no Hub.
    """
    settings = load()
    if not settings.hub_wanted:
        raise RefitError(
            "JupyterHub doesn't run here, so that nobody can log in.",
            why=why_no_hub(settings),
            hint="change that in settings.yaml, and run `refit up`.",
        )
    return settings
