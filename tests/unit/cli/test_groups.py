"""Groups read the parameters of the verb that is called alone; help and mistakes know all verbs."""

from __future__ import annotations

import pytest
from typer import Typer
from typer._click.exceptions import UsageError

from flows.cli.groups import Group, in_panels

VERBS = ("list", "show", "rm")


@pytest.fixture
def group() -> Group:
    verbs = Typer()
    for name in VERBS:

        def verb(chosen: str = "") -> None:
            """Do nothing."""

        verbs.command(name)(verb)
    return Group("things", "Things", lambda: verbs, "Things.")


def test_a_call_makes_the_verb_that_is_called_and_no_other(group: Group) -> None:
    context = group.make_context("things", ["show", "--chosen", "one"])
    assert list(context.command.commands) == ["show"]
    assert list(group.whole.commands) == list(VERBS)  # what others of this process are shown


def test_help_knows_all_verbs(group: Group) -> None:
    with group.make_context("things", ["--help"], resilient_parsing=True) as context:
        assert list(context.command.commands) == list(VERBS)


def test_a_mistake_is_held_against_all_verbs(group: Group) -> None:
    with group.make_context("things", ["shw"]) as context, pytest.raises(UsageError, match="show"):
        context.command.resolve_command(context, ["shw"])


def test_verbs_are_listed_in_the_parts_of_the_help_in_their_order() -> None:
    verbs = Typer()
    for name in VERBS:
        verbs.command(name)(lambda: None)
    in_panels(verbs, {"Commands": ("show",), "More": ("rm", "list")})
    listed = [(one.name, one.rich_help_panel) for one in verbs.registered_commands]
    assert listed == [("show", "Commands"), ("rm", "More"), ("list", "More")]


def test_a_verb_without_a_part_of_the_help_is_listed_and_a_part_without_its_verb_is_refused() -> None:
    verbs = Typer()
    for name in VERBS:
        verbs.command(name)(lambda: None)
    in_panels(verbs, {"More": ("show",)})
    assert [one.name for one in verbs.registered_commands] == ["show", "list", "rm"]
    with pytest.raises(ValueError, match="mv"):
        in_panels(verbs, {"More": ("mv",)})
