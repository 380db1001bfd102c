"""Wire format: wire.toml is the source, layout.py is generated from it."""
