"""GpuCompressor and Compressor side by side: the same norms, codes, residuals, averages.

Three rounds of two workers; and one of the first and last of 300, whose sums have 16 bits: the others have Compressors
alone; two of three that subtract what is known of their rounding; residuals of bfloat16; two that agree, whose clamp
moves out; two with rows that have scales; a batch of partitions whose rotation blocks end at tensors; one of several
rows, with what is not compressed.
On the CPU with TRITON_INTERPRET=1, else on the GPU. Fails with an AssertionError.
"""

from __future__ import annotations

import numpy as np
import reference
import torch

from byteps_thc import Compressor, ThcConfig, _core
from byteps_thc.arrays import everybody, residual_of_tensor
from byteps_thc.block_plan import WHOLE, BlockPlan, RowSpan
from byteps_thc.compressor import Partition, received_by_all, scale_groups
from byteps_thc.device_message import HEADER_WORDS, Beside, Message
from byteps_thc.gpu import GpuCompressor
from byteps_thc.transport.among_ranks import resolve_among_ranks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NONE = slice(0, 0)
CONFIG = ThcConfig(seed=0x123456789ABCDEF, error_feedback=True)


def check(
    workers: int,
    coordinates: int,
    rounds: int,
    config: ThcConfig = CONFIG,
    alike: bool = False,
    plan: BlockPlan = WHOLE,
    zeros: slice = NONE,
) -> None:
    """The first and the last worker have GpuCompressors, too. alike: all have the same gradient. zeros: in it."""
    cpu = [Compressor(config, workers=workers, worker=worker, threads=1) for worker in range(workers)]
    gpu = {worker: GpuCompressor(config, workers=workers, worker=worker, device=DEVICE) for worker in (0, workers - 1)}
    host = [compressor.partition("layer", coordinates, plan=plan) for compressor in cpu]
    device = {
        worker: compressor.batch([("layer", slice(0, coordinates))], None, plan) for worker, compressor in gpu.items()
    }
    rng = np.random.default_rng(0)
    for round in range(rounds):
        gradients = [rng.standard_normal(coordinates).astype(np.float32) for _ in range(workers)]
        if alike:
            gradients = [gradients[0].copy() for _ in range(workers)]
        if round == 1:
            gradients[1][500] = np.inf
        for gradient in gradients:
            gradient[zeros] = 0
        for worker, compressor in enumerate(cpu):
            compressor.measure(host[worker], gradients[worker], round=round)
        there = {worker: torch.from_numpy(gradients[worker]).to(DEVICE) for worker in gpu}
        for worker, batch in device.items():
            batch.begin(round if worker else torch.tensor([round], dtype=torch.int32, device=DEVICE))
            batch.measure(there[worker])
            np.testing.assert_array_equal(batch.norms.cpu().numpy(), host[worker].norms)
        maxima = reference.max_norms([partition.norms for partition in host])
        before = {worker: host[worker].residual.copy() for worker in gpu if cpu[worker].resolved.error_feedback}
        codes = torch.stack([torch.from_numpy(cpu[worker].encode(host[worker], maxima)) for worker in range(workers)])
        for worker, batch in device.items():
            batch.max_norms.copy_(torch.from_numpy(maxima))
            mine = torch.empty(batch.code_bytes, dtype=torch.uint8, device=DEVICE)
            batch.encode(there[worker], mine)
            np.testing.assert_array_equal(mine.cpu().numpy(), codes[worker].numpy())
            if cpu[worker].resolved.error_feedback:
                residual = residual_of_tensor(batch.residual)
                np.testing.assert_array_equal(residual.view(np.uint8), host[worker].residual.view(np.uint8))
                assert np.array_equal(residual, before[worker]) == (round == 1), "a lost step leaves the residual"
                assert bool(batch.keep) == host[worker].residual_kept == (round != 1)
            assert int(batch.clamped) == host[worker].clamped
        values = torch.uint8 if cpu[0].resolved.value_bits == 8 else torch.uint16
        sums = torch.empty(host[0].padded, dtype=values, device=DEVICE)
        gpu[0].lookup_sum(codes.to(DEVICE), sums)
        averages = np.empty(coordinates, np.float32)
        for compressor, partition in zip(cpu, host, strict=True):
            compressor.decode(partition, sums.cpu().numpy(), everybody(workers), averages)
        out = torch.empty(coordinates, device=DEVICE)
        for batch in device.values():
            batch.decode(sums, out)
            np.testing.assert_array_equal(out.cpu().numpy(), averages)
        blocks = len(host[0].measured)
        assert alike == any(np.any(part.norms[:blocks] > part.measured) for part in host) or round == 0
        assert round == 1 or not averages[zeros].any()
        exact = np.mean(gradients, axis=0)
        assert round == 1 or np.square(averages - exact).sum() < 0.1 * np.square(exact).sum()


def check_batch(rows: tuple[RowSpan, ...]) -> None:
    """One worker's batch of two partitions, sums requantized and not, against a Compressor's partitions.

    Blocks end at tensors. rows: with scales.
    """
    ends, spans = (1280, 1408, 9600, 17_408), [("first", slice(0, 16_384)), ("second", slice(16_384, 20_003))]
    gradient = np.random.default_rng(1).standard_normal(20_003).astype(np.float32)
    plan = BlockPlan(ends, rows)
    for config in (ThcConfig(bits=4, error_feedback=True), ThcConfig(bits=5, down_bits=6, error_feedback=True)):
        resolved = resolve_among_ranks(config, "shards", 1)
        cpu = Compressor(resolved, workers=1, worker=0, threads=1)
        gpu = GpuCompressor(resolved, workers=1, worker=0, device=DEVICE)
        batch, there = gpu.batch(spans, None, plan), torch.from_numpy(gradient).to(DEVICE)
        batch.begin(3)
        batch.measure(there)
        batch.max_norms.copy_(batch.norms)
        codes = torch.empty(batch.code_bytes, dtype=torch.uint8, device=DEVICE)
        batch.encode(there, codes)
        parts, residuals, averages, totals = [], [], [], []
        for name, span in spans:
            part = cpu.partition(name, span.stop - span.start, plan=plan.within(span))
            mine = cpu.encode(part, cpu.measure(part, gradient[span], round=3))
            np.testing.assert_array_equal(codes[: len(mine)].cpu().numpy(), mine)
            codes = codes[gpu.sizes(part.coordinates)[1] * gpu.table.bits // 8 :]
            sums = np.zeros(part.padded, np.uint8 if resolved.value_bits == 8 else np.uint16)
            _core.lookup_sum(mine, cpu.table.array, sums, bits=cpu.table.bits, add=False)
            received, of_groups = received_by_all(cpu, part, sums)
            average = np.empty(part.coordinates, np.float32)
            cpu.decode(part, received, of_groups, average)
            totals.append(np.pad(sums, (0, gpu.sizes(part.coordinates)[1] - part.padded)))
            parts.append(part)
            residuals.append(part.residual)
            averages.append(average)
        np.testing.assert_array_equal(batch.norms.cpu().numpy(), as_in_batch(parts))
        aggregate = torch.from_numpy(np.concatenate(totals)).to(DEVICE)
        if resolved.down is not None:
            sent = torch.empty(aggregate.numel() * resolved.down.bits // 8, dtype=torch.uint8, device=DEVICE)
            limits = torch.empty(scale_groups(aggregate.numel()), dtype=torch.uint16, device=DEVICE)
            batch.requantize(aggregate, sent, limits)
            filled = torch.zeros(-(sent.nbytes + limits.nbytes) % 4, dtype=torch.uint8, device=DEVICE)
            aggregate = torch.cat([sent, limits.view(torch.uint8), filled]).unsqueeze(0)
        np.testing.assert_array_equal(batch.residual.cpu().numpy(), np.concatenate(residuals))
        out = torch.empty(20_003, device=DEVICE)
        batch.decode(aggregate, out)
        np.testing.assert_array_equal(out.cpu().numpy(), np.concatenate(averages))


def as_in_batch(parts: list[Partition]) -> np.ndarray:
    """Norms of the partitions: of all blocks, then of all rows."""
    counts = [len(part.measured) for part in parts]
    blocks = [part.norms[:count] for part, count in zip(parts, counts, strict=True)]
    return np.concatenate([*blocks, *(part.norms[count:] for part, count in zip(parts, counts, strict=True))])


def check_rows(plan: BlockPlan) -> None:
    """Rows of two partitions each, with what travels exactly and padding, against a Compressor's partitions.

    Rows are not aligned; the second one is decoded. In the last round another rank has another gradient.
    """
    workers, columns, decoded = 3, 2403, 1
    spans, small, padding = [slice(0, 1024), slice(1024, columns)], (700, 730), (2400, columns)
    holes = [
        (row * columns + start, row * columns + stop) for row in range(workers) for start, stop in (small, padding)
    ]
    cleared = np.concatenate([np.arange(*hole) for hole in holes])
    resolved = ThcConfig(bits=4, error_feedback=True, rotation_block=1024).resolve(workers)
    cpu = Compressor(resolved, workers=workers, worker=1, threads=1)
    gpu = GpuCompressor(resolved, workers=workers, worker=1, device=DEVICE)
    names = [[f"{row},{part}" for part in range(2)] for row in range(workers)]
    batch = gpu.matrix(names, spans, None, plan, decoded, Beside(torch.arange(*small, device=DEVICE), [small], holes))
    words = torch.zeros(HEADER_WORDS + batch.norms.numel(), dtype=torch.int32, device=DEVICE)
    state = torch.tensor([0, 0, (1 << 31) - 1, 0], dtype=torch.int32, device=DEVICE)
    batch.message = Message(words, state, torch.zeros((), dtype=torch.bool, device=DEVICE))
    residual = np.zeros(workers * columns, np.float32)
    places = [slice(row * columns + span.start, row * columns + span.stop) for row in range(workers) for span in spans]
    parts = [
        cpu.partition(name, place.stop - place.start, plan=own, residual=residual[place])
        for name, place, own in zip(
            [name for row in names for name in row],
            places,
            workers * [plan.within(span) for span in spans],
            strict=True,
        )
    ]
    rng = np.random.default_rng(2)
    for round in range(3):
        gradient = rng.standard_normal(workers * columns).astype(np.float32)
        there = torch.from_numpy(gradient.copy()).to(DEVICE)
        header = (7, round, 5, (1 << 31) - 1 - 5)
        batch.measure(there, (round, header))
        assert words[:HEADER_WORDS].tolist() == list(header)
        np.testing.assert_array_equal(words[HEADER_WORDS:].cpu(), batch.norms.view(torch.int32).cpu())
        exact = gradient.reshape(workers, columns)[:, slice(*small)]
        np.testing.assert_array_equal(batch.exact.cpu().numpy(), exact.reshape(-1))
        gradient[cleared] = 0
        norms = [cpu.measure(part, gradient[place], round=round) for part, place in zip(parts, places, strict=True)]
        np.testing.assert_array_equal(batch.norms.cpu().numpy(), as_in_batch(parts))
        codes = torch.empty(batch.code_bytes, dtype=torch.uint8, device=DEVICE)
        if round == 2:
            words[2] += 1
            batch.encode(there, codes)
            assert batch.max_norms.isnan().all()
            assert not batch.keep.any()
            np.testing.assert_array_equal(batch.residual.cpu().numpy(), residual)
            assert state.tolist() == [7, 2, 6, (1 << 31) - 1 - 5]
            break
        batch.encode(there, codes)
        encoded = [cpu.encode(part, own.copy()) for part, own in zip(parts, norms, strict=True)]
        np.testing.assert_array_equal(codes.cpu().numpy(), np.concatenate(encoded))
        residual[cleared] = 0
        np.testing.assert_array_equal(batch.residual.cpu().numpy(), residual)
        own = slice(2 * decoded, 2 * decoded + 2)
        sums = [np.zeros(part.padded, np.uint8) for part in parts[own]]
        for _ in range(workers):
            for mine, total in zip(encoded[own], sums, strict=True):
                _core.lookup_sum(mine, cpu.table.array, total, bits=cpu.table.bits, add=True)
        wanted = np.empty(columns, np.float32)
        for part, total, span in zip(parts[own], sums, spans, strict=True):
            cpu.decode(part, total, everybody(workers), wanted[span])
        wanted[slice(*small)] = exact.sum(0) / np.float32(workers)
        batch.exact.view(workers, -1).copy_(torch.from_numpy(exact.sum(0)).to(DEVICE).expand(workers, -1))
        out = torch.empty(columns, device=DEVICE)
        batch.decode(torch.from_numpy(np.concatenate(sums)).to(DEVICE), out)
        np.testing.assert_array_equal(out.cpu().numpy(), wanted)


def main() -> None:
    check_batch(())
    check_batch((RowSpan(1500, 9000, 50), RowSpan(12_000, 20_003, 300, 7)))
    check_rows(WHOLE)
    check_rows(BlockPlan((), (RowSpan(0, 650, 20), RowSpan(1100, 2000, 64))))
    rows, zeros = BlockPlan((), (RowSpan(320, 8192 + 2048 + 5, 50),)), slice(820, 1320)
    for known in (False, True):
        settings = {"residual_dtype": "bfloat16", "subtract_rounding": known}
        check(2, 8192 + 2048 + 64 + 9, 3, CONFIG.model_copy(update=settings), plan=rows, zeros=zeros)
    check(2, 8192 + 2048 + 64 + 9, 2, ThcConfig(bits=4), plan=rows, zeros=zeros)
    check(2, 8192 + 2048 + 64 + 9, rounds=3)
    check(300, 1024 + 64 + 9, rounds=1)
    check(2, 1024 + 64 + 9, rounds=1, config=ThcConfig(p=1 / 8))
    check(3, 8192 + 64 + 9, rounds=2, config=CONFIG.model_copy(update={"subtract_rounding": True}))
    for known in (False, True):
        settings = {"residual_dtype": "bfloat16", "subtract_rounding": known}
        check(2, 8192 + 2048 + 64 + 9, rounds=3, config=CONFIG.model_copy(update=settings))
    agreeing = ThcConfig(seed=CONFIG.seed, error_feedback=True, adaptive_clamp=True, rotation_block=1024)
    check(2, 2 * 1024 + 64 + 9, rounds=3, config=agreeing, alike=True)
    print("same bits")


if __name__ == "__main__":
    main()
