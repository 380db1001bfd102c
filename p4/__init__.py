"""The P4 side of byteps_thc: the switch programs, their control plane and a model that runs them."""
