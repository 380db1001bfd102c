"""Ways to talk to a switch: BFRT Python for bfshell, BFRT gRPC, simple_switch_CLI, and the P4 model in process."""
