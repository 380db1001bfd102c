"""Commands of `thc` for trying byteps_thc out: demo, demo-switch and testbed."""
