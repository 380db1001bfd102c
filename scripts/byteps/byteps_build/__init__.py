"""Builds BytePS from its PyPI source package for the Python and torch at hand, with THC's compressor in it."""
