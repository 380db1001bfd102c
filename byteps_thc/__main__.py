"""`python -m byteps_thc`: the `thc` command of this Python."""

from byteps_thc.tools.cli import app

if __name__ == "__main__":
    app(prog_name="thc")
