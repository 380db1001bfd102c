"""A BytePS worker that trains with known gradients; where its codes go and how they are made is in its environment.

Prints a digest of the parameters that are compressed. Arguments: steps.
"""

import hashlib
import sys

import torch
from byteps_training import backward, new_parameters

import byteps_thc.torch as bps

torch.set_num_threads(1)


def main() -> None:
    steps = int(sys.argv[1])
    bps.init()
    parameters = new_parameters()
    plain = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(plain, parameters.items(), bps.Compression.thc())
    for step in range(steps):
        optimizer.zero_grad()
        backward(parameters, step, bps.rank())
        optimizer.step()
    digest = hashlib.sha256()
    # BytePS's servers add the small, exact ones in the order in which they arrive, which changes their last bits.
    for name in sorted(optimizer.compression_state_dict()["residuals"]):
        digest.update(parameters[name].detach().contiguous().view(torch.uint8).numpy().tobytes())
    print(f"digest {digest.hexdigest()}", flush=True)
    optimizer.close_compression()
    bps.shutdown()


main()
