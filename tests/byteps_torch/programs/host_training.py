"""One of the two processes of a BytePS worker that train with THC. Arguments: where to leave the report."""

import sys
from pathlib import Path

import torch
from byteps_training import BYPASS_ELEMENTS, CONFIG, ROWS, backward, new_parameters

import byteps_thc.torch as bps
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import sealed

torch.set_num_threads(1)
STEPS = 4


def optimizer_of(parameters):
    policy = CompressionPolicy(bypass_elements=BYPASS_ELEMENTS, rows=ROWS, warmup_steps=1, deadline_s=60)
    compression = bps.Compression.thc(CONFIG, lanes=2, policy=policy)
    return bps.DistributedOptimizer(torch.optim.SGD(parameters.values(), lr=0.1), parameters.items(), compression)


def refusal_of_another_processes_state(optimizer, state):
    without = {key: state[key] for key in state if key != "local_root"}
    other = {"local_root": False} if bps.local_rank() == 0 else sealed(without)
    try:
        optimizer.load_compression_state_dict(other)
    except ConfigurationError as error:
        return str(error)
    return "none"


def main():
    bps.init()
    parameters = new_parameters()
    optimizer = optimizer_of(parameters)
    steps = []
    for step in range(STEPS):
        if step == 2:  # resumes from a checkpoint
            state = optimizer.compression_state_dict()
            refused = refusal_of_another_processes_state(optimizer, state)
            optimizer.close_compression()
            optimizer = optimizer_of(parameters)
            optimizer.load_compression_state_dict(state)
        optimizer.zero_grad()
        backward(parameters, step, bps.rank())
        optimizer.synchronize()
        steps.append({name: p.grad.clone() for name, p in parameters.items()})
        optimizer.step()
    residuals = optimizer.compression_state_dict()["residuals"]
    sent_bytes = optimizer.compression_stats().sent_bytes
    report = {"steps": steps, "residuals": residuals, "refused": refused, "sent_bytes": sent_bytes}
    torch.save(report, Path(sys.argv[1]) / f"report{bps.rank()}.pt")
    optimizer.close_compression()
    bps.shutdown()


main()
