"""`python -m byteps_thc`, and the command `thc`."""

import sys


def main() -> None:
    """Run the command line of the extra `cli`; exit with the command to install it if it is missing."""
    try:
        from byteps_thc._cli.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("rich", "typer"):
            raise
        sys.exit(f"thc: {package} is not installed: pip install 'rich>=13' 'typer>=0.12'")
    app(prog_name="thc")


if __name__ == "__main__":
    main()
