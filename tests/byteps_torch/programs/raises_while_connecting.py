"""A BytePS worker that raises an error of its own while BytePS's first push still waits for the other worker."""

import torch

import byteps_thc.torch as bps

bps.init()
bps.push_pull_async(torch.ones(1000), name="first")
raise RuntimeError("of the program itself")
