"""The `thc` command and what it runs: the demo, the doctor, the comparison. No training imports it."""
