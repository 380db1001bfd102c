"""One worker process of the demo: trains its own copy of the model, averaging gradients over the workers every step."""

import math
import os
import signal
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

# Before the first process group, which would hold it (byteps_thc._net.communicator).
import torch.distributed.nn.functional

from thc_lab.demo.averaging import Averaging, Gradients, make_averaging
from thc_lab.demo.data import BatchSampler, Corpus, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of, window_losses
from thc_lab.demo.network import Network
from thc_lab.demo.settings import DemoSettings, Failure, Progress, RunResult, Scheme

WARM_UP_STEPS = 20
FINAL_LEARNING_RATE_FRACTION = 0.05
MAX_GRADIENT_NORM = 1.0
#: windows of held-out text for the curve; the final loss takes all
CURVE_WINDOWS = 64


def run_worker(worker: int, settings: DemoSettings, network: Network, rendezvous: Path, channel: Connection) -> None:
    """Train once per scheme; rank 0 sends Progress and RunResult, any rank a Failure, through `channel`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the launcher ends the workers
    try:
        torch.set_num_threads(1)
        if network.links().hosts:
            os.environ["GLOO_SOCKET_IFNAME"] = network.interface()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", network.interface())
        with network.on_host(worker):
            dist.init_process_group("gloo", init_method=rendezvous.as_uri(), rank=worker, world_size=settings.workers)
            corpus = load_corpus()
            for scheme in settings.schemes:
                _train(worker, scheme, settings, corpus, network, channel)
            dist.barrier()  # a worker that leaves early would break the others' connections
            dist.destroy_process_group()
    except Exception as error:
        channel.send(Failure(f"worker {worker}", f"{type(error).__name__}: {error}", traceback.format_exc()))
        raise SystemExit(1) from None


def _train(
    worker: int, scheme: Scheme, settings: DemoSettings, corpus: Corpus, network: Network, channel: Connection
) -> None:
    # A session lives in here: a DPDK device is free for the next one when it is gone.
    training = Training(worker, scheme, settings, corpus, make_averaging(scheme, settings, network, worker))
    before = network.sent_bytes(worker)
    for progress in training.run():
        if worker == 0:
            channel.send(progress)
    dist.barrier()  # all gradients are on the links by then
    after = network.sent_bytes(worker)
    training.finish(None if before is None or after is None else after - before)
    if worker == 0:
        channel.send(training.result)


class Training:
    """One run of one worker. All workers start from the same parameters and see their own batches."""

    def __init__(
        self, worker: int, scheme: Scheme, settings: DemoSettings, corpus: Corpus, averaging: Averaging
    ) -> None:
        torch.manual_seed(settings.seed)
        self._settings = settings
        self._scheme = scheme
        self._averaging = averaging
        self._held_out = corpus.held_out
        self._model = Gpt(GptShape(settings.layers, settings.heads, settings.width, settings.context))
        self._gradients = flatten_gradients(self._model)
        self._sampler = BatchSampler(
            corpus.training,
            batch_size=settings.batch_size,
            context=settings.context,
            seed=settings.seed,
            worker=worker,
        )
        self._optimizer = torch.optim.AdamW(self._model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
        self.result = RunResult(scheme, coordinates=sum(gradient.size for gradient in self._gradients.values()))

    def run(self) -> Iterator[Progress]:
        """Train; yields after every step."""
        dist.barrier()  # a worker that began early would time the others' set-up
        for step in range(1, self._settings.steps + 1):
            start = time.perf_counter()
            loss = self._step(step)
            self.result.step_s.append(time.perf_counter() - start)
            validation = None
            if step % self._settings.validate_every == 0:
                validation = self._validate(CURVE_WINDOWS)
                self.result.validation_loss.append((step, validation))
            self.result.training_loss.append(loss)
            yield Progress(self._scheme, step, loss, validation)
        if self._settings.loss_tolerant:
            self._broadcast_parameters()

    def finish(self, sent_bytes: int | None) -> None:
        """Complete self.result; collective. sent_bytes: that this host sent meanwhile, None if nobody counted."""
        self.result.wall_s = sum(self.result.step_s)
        self.result.training_loss = mean_over_workers(self.result.training_loss)
        self.result.final_validation_loss = self._validate(None)
        self.result.workers_agree = self._workers_agree()
        self._averaging.finish(self.result)
        if sent_bytes is not None:
            (self.result.sent_bytes,) = mean_over_workers([float(sent_bytes)])

    def _step(self, step: int) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * learning_rate_factor(step, self._settings.steps)
        for gradient in self._gradients.values():
            gradient.fill(0)  # the parameters' .grad stay views of these arrays
        loss = loss_of(self._model, *self._sampler.next_batch())
        torch.autograd.backward(loss)
        every = self._settings.nmse_every
        measured = every > 0 and step % every == 0 and self._scheme is not Scheme.FP32
        exact = exact_average(self._gradients) if measured else None
        dist.barrier()  # so that the time excludes the wait for a slower forward pass
        self._average()
        if exact is not None:
            self.result.nmse.append((step, nmse(self._gradients, exact)))
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        if self._settings.loss_tolerant and step % self._settings.synchronize_every == 0:
            self._broadcast_parameters()
        return float(loss.detach())

    def _average(self) -> None:
        start = time.perf_counter()
        self._averaging.average(self._gradients)
        self.result.average_ms.append((time.perf_counter() - start) * 1e3)
        self._averaging.record(self.result)

    def _validate(self, windows: int | None) -> float:
        """Mean loss per character over the first windows (None: all) of the held-out text, shared by the workers."""
        count, worker = dist.get_world_size(), dist.get_rank()
        total, taken = window_losses(self._model, self._held_out, self._settings.context, windows, worker, count)
        sums = torch.tensor([total, float(taken)], dtype=torch.float64, device="cpu")
        dist.all_reduce(sums)
        return float(sums[0] / sums[1])

    @torch.no_grad()
    def _broadcast_parameters(self) -> None:
        for parameter in self._model.parameters():
            dist.broadcast(parameter, src=0)

    def _workers_agree(self) -> bool:
        """Compare every parameter's bits with rank 0's."""
        same = torch.ones(1, device="cpu")
        for parameter in self._model.parameters():
            reference = parameter.detach().clone()
            dist.broadcast(reference, src=0)
            same *= float(torch.equal(reference, parameter))
        dist.all_reduce(same, op=dist.ReduceOp.MIN)
        return bool(same.item())


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to FINAL_LEARNING_RATE_FRACTION."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    decayed = FINAL_LEARNING_RATE_FRACTION + (1 - FINAL_LEARNING_RATE_FRACTION) * cosine
    return min(1.0, step / WARM_UP_STEPS) * decayed


def flatten_gradients(model: Gpt) -> Gradients:
    """Give every parameter a .grad that is a view of one flat array per transformer block, and return the arrays.

    Keys: "blocks.<i>", and "embeddings" for all that is outside the blocks; float32[coordinates of the group].
    """
    groups: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        group = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else "embeddings"
        groups.setdefault(group, []).append(parameter)
    gradients: Gradients = {}
    for group, parameters in groups.items():
        flat = torch.zeros(sum(parameter.numel() for parameter in parameters), device="cpu")
        offset = 0
        for parameter in parameters:
            parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        gradients[group] = flat.numpy()
    return gradients


def exact_average(gradients: Gradients) -> Gradients:
    """Average without compression, to compare with; collective."""
    exact = {name: gradient.copy() for name, gradient in gradients.items()}
    for gradient in exact.values():
        dist.all_reduce(torch.from_numpy(gradient))
        gradient /= dist.get_world_size()
    return exact


def nmse(estimate: Gradients, exact: Gradients) -> float:
    """|estimate - exact|^2 / |exact|^2 over all coordinates (paper, section 3)."""
    error = sum(float(np.square(estimate[name] - exact[name], dtype=np.float64).sum()) for name in exact)
    energy = sum(float(np.square(gradient, dtype=np.float64).sum()) for gradient in exact.values())
    return error / energy


def mean_over_workers(values: list[float]) -> list[float]:
    """Mean of each value over the workers; collective."""
    total = torch.tensor(values, dtype=torch.float64, device="cpu")
    dist.all_reduce(total)
    means: list[float] = (total / dist.get_world_size()).tolist()
    return means
