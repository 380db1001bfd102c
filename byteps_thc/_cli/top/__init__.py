"""The `thc top` command: what a thc-ps does at this moment."""
