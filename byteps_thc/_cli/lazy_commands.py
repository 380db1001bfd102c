"""Commands whose modules are imported when they are called, so that no command waits for another's imports."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from byteps_thc._base.built import explain
from byteps_thc._base.errors import ConfigurationError

#: Settings of a command that does not load, whatever its arguments.
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class LazyCommands(TyperGroup):
    """A group with further commands, named in `modules`; its --help imports them all."""

    #: name of a command -> "module:attribute", a function or a typer.Typer
    modules: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, in `modules` first."""
        return [*self.modules, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None; imports it if it is one of `modules`."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.modules[cmd_name].split(":")
        settings: dict[str, Any] = {}
        try:
            target = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # of a distribution of its own: the other commands work without it
            target, settings = _refusal(cmd_name, error), {"context_settings": _ANY_ARGUMENTS}
        command: Any
        if isinstance(target, typer.Typer):
            command = typer.main.get_group(target)
        else:
            single = typer.Typer(add_completion=False)
            single.command(**settings)(target)
            command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with; TyperGroup would not suggest names in `modules`."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and (similar := difflib.get_close_matches(args[0], names)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {similar[0]!r}?")
        return super().resolve_command(ctx, args)


def _refusal(name: str, error: Exception) -> Callable[[], None]:
    """Return a command that raises a ConfigurationError: the module of that name does not load."""
    why = str(explain(error)) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"

    def refuse() -> None:
        raise ConfigurationError(f"thc {name} does not load: {why}") from error

    refuse.__doc__ = f"Does not load: {why}"
    return refuse
