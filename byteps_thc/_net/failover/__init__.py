"""A session that goes on when a server is gone, and takes it back: docs/contributors/protocol.md, "Failing over"."""
