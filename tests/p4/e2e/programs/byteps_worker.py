"""A BytePS worker that trains with known gradients; where its codes go is in its environment.

Prints a digest of the parameters that are compressed. Arguments: steps.
"""

import hashlib
import sys

import torch
from byteps_training import BYPASS_ELEMENTS, CONFIG, backward, new_parameters

import byteps_thc.torch as bps
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.session import Timeouts

torch.set_num_threads(1)
#: A software switch takes milliseconds for a packet: queues are long, and nothing else is lost.
TIMEOUTS = Timeouts(connect_s=60.0, operation_s=120.0, rto_initial_s=1.0, rto_min_s=0.3, rto_max_s=2.0)


def main() -> None:
    steps = int(sys.argv[1])
    bps.init()
    parameters = new_parameters()
    compression = bps.Compression.thc(
        CONFIG, timeouts=TIMEOUTS, policy=CompressionPolicy(bypass_elements=BYPASS_ELEMENTS, deadline_s=120)
    )
    plain = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(plain, parameters.items(), compression)
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
