"""The `thc` command and what it runs: the demo, the doctor, the break-even point. No training imports it."""
