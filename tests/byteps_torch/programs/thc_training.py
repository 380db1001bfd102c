"""A BytePS worker that trains with THC; the route is in its environment. Arguments: where to leave the report, and
"device" to compress as on a GPU, with the CPU's kernels.

Every part makes an optimizer of its own and reports under its name the values that the test compares.
"""

import sys
import time
from pathlib import Path

import torch
from byteps_training import BYPASS_ELEMENTS, CONFIG, ROWS, SHAPES, backward, new_parameters
from host_device_compressor import take_cpu_for_device

import byteps_thc.torch as bps
from byteps_thc._base.errors import ConfigurationError, ThcError
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import sealed

torch.set_num_threads(1)
STEPS = 5


def optimizer_of(parameters, *, lanes=2, passes=1, policy=None, **settings):
    policy = policy or CompressionPolicy(bypass_elements=BYPASS_ELEMENTS, rows=ROWS, deadline_s=60)
    compression = bps.Compression.thc(CONFIG, lanes=lanes, policy=policy, **settings)
    plain = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    return bps.DistributedOptimizer(plain, parameters.items(), compression, backward_passes_per_step=passes)


def gradients(parameters):
    return {name: p.grad.clone() for name, p in parameters.items()}


def delay(parameter):
    """Its gradient, and all that autograd computes after it, come later on this worker than on the other."""
    return parameter.register_hook(lambda _: time.sleep(0.05))


def refused_states(optimizer):
    """Messages for states that are not of this worker."""
    messages = []
    for state in (sealed(optimizer.compression_state_dict() | {"worker": 7}), {"round": 1}):
        try:
            optimizer.load_compression_state_dict(state)
        except ConfigurationError as error:
            messages.append(str(error))
    return messages


def error_when_closed(optimizer):
    """Name of the error of a step after close_compression()."""
    optimizer.close_compression()
    try:
        optimizer.synchronize()
    except ThcError as error:
        return type(error).__name__
    return "none"


def averages():
    """Steps with known gradients in other orders on each worker, one worker slow; a restart in the middle."""
    parameters = new_parameters()
    optimizer = optimizer_of(parameters)
    delays = [delay(parameters[name]) for name in ("last", "first") if bps.rank() == 1]
    steps = []
    for step in range(STEPS):
        if step == 3:
            saved = optimizer.compression_state_dict()
            optimizer.close_compression()
            plain_state = optimizer.state_dict()
            optimizer = optimizer_of(parameters, lanes=1)  # another number of lanes
            optimizer.load_compression_state_dict(saved)
            optimizer.load_state_dict(plain_state)
        optimizer.zero_grad()
        backward(parameters, step, bps.rank())
        optimizer.synchronize()
        steps.append(gradients(parameters))
        optimizer.step()
    for hook in delays:
        hook.remove()
    state = optimizer.compression_state_dict()
    stats = optimizer.compression_stats()
    refused = refused_states(optimizer)
    closed = error_when_closed(optimizer)
    torch.optim.SGD(parameters.values(), lr=0.1).load_state_dict(optimizer.state_dict())
    return {
        "steps": steps,
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "residuals": saved["residuals"],
        "rounds": (saved["round"], state["round"], state["step"]),
        "ratio": stats.ratio,
        "sent_bytes": stats.sent_bytes,
        "coordinates": stats.coordinates,
        "stat_steps": stats.steps,
        "retransmissions": stats.retransmissions,
        "nmse": stats.nmse,
        "copied": stats.to_host_bytes + stats.to_device_bytes,
        "refused": refused,
        "closed": closed,
    }


def warm_up_and_accumulation():
    """Step 0 is exact, steps 1 and 2 are compressed, step 3 is exact again; two backward passes each."""
    parameters = new_parameters()
    policy = CompressionPolicy(bypass_elements=BYPASS_ELEMENTS, rows=ROWS, warmup_steps=1, stop_step=3)
    optimizer = optimizer_of(parameters, passes=2, policy=policy)
    steps = []
    for step in range(4):
        optimizer.zero_grad()
        for part in range(2):
            backward(parameters, 10 + 2 * step + part, bps.rank())
        optimizer.synchronize()
        steps.append(gradients(parameters))
        optimizer.step()
    optimizer.close_compression()
    return {"steps": steps}


def infinity_and_grad_scaler():
    """NaN in one lane of one worker reaches both scalers and no residual; the scale's change rescales residuals."""
    parameters = {name: torch.nn.Parameter(torch.zeros(8192)) for name in ("weight", "other")}
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = optimizer_of(parameters, grad_scaler=scaler)
    scales, residuals = [], []
    for step in range(3):
        optimizer.zero_grad()
        slope = torch.linspace(-1, 1, 8192) * (bps.rank() + 1)
        invalid = float("nan") if step == 1 and bps.rank() == 1 else 1.0
        loss = (parameters["weight"] * slope).sum() * invalid + (parameters["other"] * slope).sum()
        before = {name: p.detach().clone() for name, p in parameters.items()}
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        for name, parameter in parameters.items():
            assert torch.equal(before[name], parameter) == (step == 1)
        residuals.append(optimizer.compression_state_dict()["residuals"])
        scaler.update()
        scales.append(scaler.get_scale())
    state = optimizer.compression_state_dict()
    optimizer.close_compression()
    assert state["loss_scale"] == scales[1] == 512.0
    for name in parameters:
        first, skipped, halved = (own[name] for own in residuals)
        assert torch.equal(first, skipped)
        assert 0 < halved.norm() < skipped.norm()  # half the scale
    return {name: p.detach() for name, p in parameters.items()}


def models_with_nothing_to_compress():
    """All parameters are smaller than bypass_elements, or of a dtype that THC does not take: averages are exact."""
    for number, dtype in enumerate((torch.float32, torch.float64)):
        weight = torch.nn.Parameter(torch.zeros(20, dtype=dtype))
        optimizer = optimizer_of({f"nothing.{number}": weight}, job=60)
        for _ in range(2):
            optimizer.zero_grad()
            (weight * (1.0 + 2 * bps.rank())).sum().backward()
            optimizer.step()
        assert torch.equal(weight.grad, torch.full((20,), 2.0, dtype=dtype))
        optimizer.load_compression_state_dict(optimizer.compression_state_dict())
        optimizer.close_compression()


def arrival_during_backward(first, last):
    """Hold the backward pass before its last gradient until the first average arrives; list each wait's seconds."""
    local, waited = [], []

    def hold(_):
        start = time.monotonic()
        while torch.equal(first.grad, local[0]):
            assert time.monotonic() - start < 30, "no average before the end of the backward pass"
            time.sleep(0.001)
        waited.append(time.monotonic() - start)
        for hook in hooks:
            hook.remove()

    hooks = [first.register_hook(lambda gradient: local.append(gradient.clone())), last.register_hook(hold)]
    return waited


def learning():
    """A small model learns a known function."""
    torch.manual_seed(bps.rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    compression = bps.Compression.thc(lanes=2, job=50)  # settings differ from the earlier jobs'
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    bps.broadcast_parameters(model.state_dict(), root_rank=0, prefix="learning.")
    bps.broadcast_optimizer_state(optimizer, root_rank=0, prefix="learning.")
    wanted = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    losses = []
    waited = arrival_during_backward(model[2].weight, model[0].weight)
    for _ in range(40):
        inputs = torch.randn(64, 64)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.close_compression()
    return {"waited": waited, "losses": losses, "parameters": [p.detach() for p in model.parameters()]}


def main():
    if sys.argv[2:] == ["device"]:
        take_cpu_for_device()
    bps.init()
    parts = (averages, warm_up_and_accumulation, infinity_and_grad_scaler, models_with_nothing_to_compress, learning)
    started = time.monotonic()
    report = {}
    for part in parts:
        report[part.__name__] = part()
        print(f"{part.__name__}: done after {time.monotonic() - started:.1f} s", flush=True)
    assert set(report["averages"]["steps"][0]) == set(SHAPES)
    torch.save(report, Path(sys.argv[1]) / f"report{bps.rank()}.pt")
    bps.shutdown()


main()
