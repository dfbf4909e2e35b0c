"""Groups of verbs whose modules are imported when one of them is called, completed or explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command_name, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from flows.core.lazily import lazily_in


class _Verbs(TyperGroup):
    """Verbs whose `--help` takes no longer than it must."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option `--help`; with a value from the beginning, for Typer imports pydantic to see that it has none."""
        if (option := super().get_help_option(ctx)) is not None:
            option.default = False
        return option

    def format_help(self, *words: Any) -> None:
        """Write the help; Typer wants to be able to write Markdown and tracebacks, too."""
        with lazily_in("typer.rich_utils", "rich.markdown", "rich.traceback"):
            super().format_help(*words)


class Group(_Verbs):
    """A group of which only the line in the help of `refit` is there, until it is used.

    Args:
        name: name of the group.
        panel: part of the help in which it is listed.
        verbs: imports the group's module and returns its verbs.
        about: its help.
    """

    def __init__(self, name: str, panel: str, verbs: Callable[[], Typer], about: str) -> None:
        super().__init__(name=name, help=about, rich_help_panel=panel)
        self._verbs = verbs

    @cached_property
    def whole(self) -> TyperGroup:
        """The group with its verbs."""
        return self._made(self._verbs())

    def make_context(self, info_name: str | None, args: list[str], *words: Any, **more: Any) -> Any:
        """The context of a call or a completion: that of the group with the verb that is called, or with all."""
        verbs = _only(self._verbs(), args[0]) if args else None
        group = self._made(verbs) if verbs else self.whole
        return group.make_context(info_name, args, *words, **more)

    def _made(self, verbs: Typer) -> TyperGroup:
        return get_group_from_info(
            TyperInfo(verbs, cls=_Verbs, name=self.name, help=self.help or "", rich_help_panel=self.rich_help_panel),
            pretty_exceptions_short=False,
            rich_markup_mode=self.rich_markup_mode,
            suggest_commands=True,
        )

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of its verbs, in the order of its help."""
        return self.whole.list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of that name; none: there is none."""
        return self.whole.get_command(ctx, cmd_name)


def _only(verbs: Typer, name: str) -> Typer | None:
    """These verbs without all but one, as Typer takes milliseconds to read the parameters of each; none: not there."""
    called = [command for command in verbs.registered_commands if _name(command) == name]
    if not called:
        return None
    alone = copy(verbs)
    alone.registered_commands, alone.registered_groups = called, []
    return alone


def _name(verb: CommandInfo) -> str:
    return verb.name or get_command_name(verb.callback.__name__ if verb.callback else "")


def in_panels(verbs: Typer, panels: Mapping[str, Sequence[str]]) -> None:
    """List verbs in parts of the help: part → names. Those without a part come last among the commands.

    Raises:
        ValueError: there is no verb of a name.
    """
    panel_of = {name: panel for panel, names in panels.items() for name in names}
    infos: list[CommandInfo | TyperInfo] = [*verbs.registered_commands, *verbs.registered_groups]
    by_name = {_name(info) if isinstance(info, CommandInfo) else str(info.name): info for info in infos}
    if missing := panel_of.keys() - by_name.keys():
        raise ValueError(f"there are no verbs of these names: {sorted(missing)}")
    for name, panel in panel_of.items():
        by_name[name].rich_help_panel = panel
    place = {name: number for number, name in enumerate(panel_of)}
    verbs.registered_commands.sort(key=lambda info: place.get(_name(info), len(place)))


def with_groups(*groups: Group, panels: Sequence[str]) -> type[TyperGroup]:
    """Verbs that have these groups after them, in parts of the help that come in this order."""

    class WithGroups(_Verbs):
        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            self.commands.update((str(group.name), group) for group in groups)
            place = {name: panels.index(str(vars(verb)["rich_help_panel"])) for name, verb in self.commands.items()}
            self.commands = {name: self.commands[name] for name in sorted(place, key=place.__getitem__)}

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Read what stands before the verb. Where nothing does, the options are not looked at, as for `--help`."""
            own, self.params = self.params, self.params if args and args[0].startswith("-") else []
            try:
                return super().parse_args(ctx, args)
            finally:
                self.params = own

    return WithGroups
