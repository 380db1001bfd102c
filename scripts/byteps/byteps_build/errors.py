"""What can go wrong while BytePS is built."""


class BuildError(Exception):
    """BytePS cannot be built here; the message says what to do."""
