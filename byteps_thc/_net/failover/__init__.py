"""A session that goes on when a server is gone, and takes it back: docs/protocol.md, "Failing over"."""
