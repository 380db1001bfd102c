"""A BytePS worker that waits for others who are not there, prints the error and ends with status 3.

Argument: what it waits in, "init" (when BytePS connects), "shutdown", or "resume".
"""

import os
import sys

import torch

import byteps_thc.torch as bps
from byteps_thc.errors import DeadlineError

torch.set_num_threads(1)


def main():
    call = sys.argv[1]
    try:
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
            bps.resume(size, 1, rank)
        bps.shutdown()
    except DeadlineError as error:
        print(f"DeadlineError: {error}", flush=True)
        raise SystemExit(3) from None


main()
