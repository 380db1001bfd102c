"""A BytePS worker that raises an error of its own while BytePS's first push still waits for the other worker."""

import torch

import byteps_thc.torch as bps

REASON = "an error of the program's own"  # not in the line that raises it, which the traceback shows

bps.init()
bps.push_pull_async(torch.ones(1000), name="first")
raise RuntimeError(REASON)
