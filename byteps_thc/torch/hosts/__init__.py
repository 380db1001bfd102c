"""Several processes of one BytePS worker (the GPUs of a host): they average before the local root sends."""
