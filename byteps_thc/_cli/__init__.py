"""The `thc` command, and a package for each of its larger subcommands. No training imports it."""
