"""The `thc` command."""

import secrets
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.text import Text

from byteps_thc._base.built import explain
from byteps_thc._base.errors import ConfigurationError, ThcError
from byteps_thc._cli.lazy_commands import LazyCommands

#: Commands of the distribution thc_lab.
_OF_LAB = ("demo", "demo-switch", "testbed")


class ThcCommands(LazyCommands):
    """Shows an error of this package as one line with exit code 1; with --debug, its traceback."""

    modules: ClassVar = {
        "doctor": "byteps_thc._cli.doctor.cli:doctor",
        "compare": "byteps_thc._cli.compare.cli:compare",
        "switch": "thc_switch.cli:app",
        **{point.name: point.value for point in entry_points(group="byteps_thc.commands")},
    }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with; ConfigurationError if thc_lab has it and is not installed."""
        if args and args[0] in _OF_LAB and args[0] not in self.modules:
            raise ConfigurationError(f"thc {args[0]} is in thc_lab: in a clone of byteps_thc, pip install ./lab")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (ThcError, ImportError) as error:
            if ctx.params["debug"]:
                raise
            text = explain(error) if isinstance(error, ImportError) else error
            Console(stderr=True).print(Text.assemble(("thc: ", "bold red"), str(text)), soft_wrap=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="thc",
    cls=ThcCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Tensor homomorphic compression: gradients as 4-bit codes that a parameter server sums without decompressing.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"byteps_thc {installed_version('byteps_thc')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands; ThcCommands reads them."""


@app.command()
def key() -> None:
    """Print a new key for authenticated jobs: (umask 077; thc key > FILE)."""
    print(secrets.token_hex(32))
