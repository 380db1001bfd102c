"""Wire format: wire.toml is the one source of fields, message types, ports, limits and names of refusals.

scripts/generate_wire.py writes layout.py (numbers), p4/thc_switch/wire.py (enums and messages), csrc/thc/wire_layout.h,
p4/programs/include/thc_wire.p4 and the fields of the Wireshark dissector. `make lint` compares them.
docs/contributors/protocol.md explains the messages.
"""
