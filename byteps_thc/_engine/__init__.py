"""Engines average gradient buffers over the ranks of a process group; the plug-ins (ddp, fsdp, torch) feed them."""
