"""The training of the example testbed: the demo's small GPT through BytePS, uncompressed and with THC.

    bpslaunch python -m thc_lab.testbed.training --steps 60

Rank 0 writes its results into $THC_TESTBED_RESULTS; `thc testbed run` prints them as a table. The environment
(THC_SERVERS, THC_CONFIG, ...) has the network and the settings, as for any BytePS training.
"""

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import byteps_thc.torch as bps
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc.torch.operations import BytepsReplicas
from thc_lab.demo.data import BatchSampler, Corpus, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of, window_losses
from thc_lab.demo.settings import SWITCH_DEFAULTS, DemoSettings, RunResult, Scheme, Traffic
from thc_lab.demo.worker import CURVE_WINDOWS, MAX_GRADIENT_NORM, learning_rate_factor
from thc_lab.testbed.plan_environment import RESULTS_VARIABLE
from thc_lab.testbed.results import dump

_FP32_BYTES = 4
#: Steps between two lines: a switch in software takes seconds for a step.
_SHOW_EVERY = 5


def main() -> None:
    """Train once uncompressed and once with THC, from the same start and with the same batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=SWITCH_DEFAULTS.steps)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    bps.init()
    corpus = load_corpus()
    runs: list[RunResult] = []
    for scheme, compression in ((Scheme.FP32, bps.Compression.none), (Scheme.THC, bps.Compression.thc())):
        training = Training(scheme, compression, corpus, arguments.steps)
        training.run()
        runs.append(training.result)
    if bps.rank() == 0 and RESULTS_VARIABLE in os.environ:
        Path(os.environ[RESULTS_VARIABLE]).write_text(dump(runs), encoding="utf-8")
    bps.shutdown()


class Training:
    """One run of one worker. All workers start from the same parameters and see their own batches."""

    def __init__(self, scheme: Scheme, compression: Any, corpus: Corpus, steps: int) -> None:
        self._settings: DemoSettings = SWITCH_DEFAULTS
        self._steps = steps
        self._scheme = scheme
        self._held_out = corpus.held_out
        torch.manual_seed(self._settings.seed)
        shape = GptShape(self._settings.layers, self._settings.heads, self._settings.width, self._settings.context)
        self._model = Gpt(shape)
        adam = torch.optim.AdamW(self._model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
        # Names are BytePS's for ever: each run has its own.
        named = [(f"{scheme}.{name}", parameter) for name, parameter in self._model.named_parameters()]
        bps.broadcast_parameters(named, root_rank=0)
        self._optimizer = bps.DistributedOptimizer(adam, named, compression)
        self._replicas = BytepsReplicas(prefix=f"{scheme}.")
        self._sampler = BatchSampler(
            corpus.training,
            batch_size=self._settings.batch_size,
            context=self._settings.context,
            seed=self._settings.seed,
            worker=bps.rank(),
        )
        self.result = RunResult(scheme, coordinates=sum(parameter.numel() for _, parameter in named))

    def run(self) -> None:
        """Train, and say so now and then; self.result is complete afterwards."""
        start = time.perf_counter()
        for step in range(1, self._steps + 1):
            self.result.training_loss.append(self._step(step))
            shown = f"loss {self.result.training_loss[-1]:.3f}"
            if step % self._settings.validate_every == 0 or step == self._steps:
                validation = self._validate(CURVE_WINDOWS)
                self.result.validation_loss.append((step, validation))
                shown += f", validation {validation:.3f}"
            if bps.rank() == 0 and (step % _SHOW_EVERY == 0 or step == self._steps):
                print(f"{self._scheme.label}, step {step}: {shown}", flush=True)
        self.result.wall_s = time.perf_counter() - start
        self.result.training_loss = self._gathered(self.result.training_loss, _means)
        self.result.final_validation_loss = self._validate(None)
        self.result.workers_agree = self._gathered(self._digest(), lambda digests: len(set(digests)) == 1)
        self._count()
        self._optimizer.close_compression()

    def _step(self, step: int) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * learning_rate_factor(step, self._steps)
        self._optimizer.zero_grad()
        loss = loss_of(self._model, *self._sampler.next_batch())
        torch.autograd.backward(loss)
        start = time.perf_counter()
        self._optimizer.synchronize()
        waited_ms = (time.perf_counter() - start) * 1e3
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        self._record(waited_ms)
        return float(loss.detach())

    def _record(self, waited_ms: float) -> None:
        """waited_ms: for the averages, after backward, during which gradients leave already."""
        stats = self._optimizer.compression_stats()
        compressed = self._scheme is not Scheme.FP32
        self.result.average_ms.append(waited_ms)
        self.result.encode_ms.append(stats.encode_ms)
        self.result.communicate_ms.append(stats.communicate_ms if compressed else waited_ms)
        self.result.decode_ms.append(stats.decode_ms)

    def _count(self) -> None:
        """Bytes per step: as counted, or 4 for a coordinate, and the same down."""
        stats = self._optimizer.compression_stats()
        if self._scheme is Scheme.FP32:
            fp32 = float(_FP32_BYTES * self.result.coordinates)
            self.result.traffic = Traffic(fp32, fp32, 0.0, 0.0)
            return
        self.result.traffic = Traffic(stats.sent_bytes / stats.steps, stats.received_bytes / stats.steps, 0.0, 0.0)
        resolved = ServerCodes.from_environment().resolve(bps.size())
        self.result.configuration = {"granularity": resolved.table.granularity, "p": resolved.table.p}
        self.result.counters = {"retransmissions": stats.retransmissions}

    def _validate(self, windows: int | None) -> float:
        """Mean loss per character over the first windows (None: all) of the held-out text, shared by the workers."""
        taken = window_losses(self._model, self._held_out, self._settings.context, windows, bps.rank(), bps.size())
        totals, counts = zip(*self._gathered(taken, list), strict=True)
        return float(sum(totals) / sum(counts))

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for parameter in self._model.parameters():
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _gathered(self, own: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Combine what all workers have; collective."""
        return combine([json.loads(text) for text in self._replicas.gather(json.dumps(own).encode())])


def _means(lists: list[list[float]]) -> list[float]:
    return [math.fsum(values) / len(values) for values in zip(*lists, strict=True)]


if __name__ == "__main__":
    main()
