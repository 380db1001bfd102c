"""The `thc doctor` command: checks this host, and names commands that mend problems."""
