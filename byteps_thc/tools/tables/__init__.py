"""`thc tables`."""
