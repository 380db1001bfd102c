"""Commands whose modules are imported when they are called, so that each starts as fast as what it needs itself."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from byteps_thc._scheme.gone import COMMANDS


class LazyCommands(TyperGroup):
    """A group with further commands, named in `modules`; its --help imports them all."""

    #: name of a command -> "module:attribute", a function or a typer.Typer
    modules: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, those of `modules` first."""
        return [*self.modules, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None; imports it if it is one of `modules`."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.modules[cmd_name].split(":")
        target = getattr(importlib.import_module(module), attribute)
        command: Any
        if isinstance(target, typer.Typer):
            command = typer.main.get_group(target)
        else:
            single = typer.Typer(add_completion=False)
            single.command()(target)
            command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with; TyperGroup's own suggestions leave out those of `modules`."""
        if args and args[0] in COMMANDS:
            ctx.fail(f"There is no command {args[0]!r} any more: {COMMANDS[args[0]]}.")
        names = self.list_commands(ctx)
        if args and args[0] not in names and (similar := difflib.get_close_matches(args[0], names)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {similar[0]!r}?")
        return super().resolve_command(ctx, args)
