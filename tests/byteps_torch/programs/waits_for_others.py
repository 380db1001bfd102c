"""A BytePS worker that waits for others who are not there, prints the error and ends with status 3.

Arguments: the call that waits, "init" (when BytePS connects), "shutdown", or "resume", and its limit in seconds.
"""

import os
import sys

import torch

import byteps_thc.torch as bps
from byteps_thc._base.errors import DeadlineError

torch.set_num_threads(1)

call, deadline_s = sys.argv[1:]
try:
    if call == "init":
        os.environ["THC_DEADLINE_S"] = deadline_s
    bps.init(lazy=call != "init")
    bps.push_pull(torch.ones(1000), name="first")  # with the other worker
    rank, size = bps.rank(), bps.size()
    if rank == 1 and call == "shutdown":
        os._exit(0)
    if call == "resume":
        bps.suspend()
        print("suspended", flush=True)
        if rank == 1:
            os._exit(0)
        os.environ["THC_DEADLINE_S"] = deadline_s
        bps.resume(size, 1, rank)
    os.environ["THC_DEADLINE_S"] = deadline_s
    bps.shutdown()
except DeadlineError as error:
    print(f"DeadlineError: {error}", flush=True)
    raise SystemExit(3) from None
