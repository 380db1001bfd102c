"""The binding to BytePS, below its front end (byteps_thc.torch) and the transport over its servers."""
