"""Codes of gathered parameters: the own shard to a message, and the messages of all ranks to all shards."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from byteps_thc._base.arrays import gradient_view
from byteps_thc._base.errors import InputError
from byteps_thc._base.limits import LARGEST_WORD
from byteps_thc._engine.engine import ShardMatrix
from byteps_thc._engine.fingerprint import damage, digest_words, digests_differ, sum_of_bits
from byteps_thc._net.handshake import first_difference
from byteps_thc._net.transport import FINGERPRINT_WORDS
from byteps_thc._scheme.decoding.codec import GatherPlan, MessageLayout, Messages, RankCodec
from byteps_thc._scheme.shares import Shard, block_words, cut_blocks, random_key, without_gaps

#: The round of all gathers: backward must decode the weights that forward had to the same bits. A constant dither only
#: decides to which level a weight is rounded. Optimizers read exact weights, so no bias adds up, as with bfloat16.
GATHER_ROUND = 0


def gather_plan(matrix: ShardMatrix, bits: int) -> GatherPlan:
    """Return the plan of a matrix with a row for each rank's shard. bits: of a code."""
    first = [part for part in matrix.compressed if part.start < matrix.columns]
    row_spans = [span for part in first if (span := part.row_span) is not None]
    words = block_words(((part.start, part.stop) for part in first), row_spans)
    gaps = [(gap.start, gap.stop) for gap in matrix.gaps]
    rows = [without_gaps(words, gaps, rank * matrix.columns) for rank in range(matrix.rows)]
    [(_, tables)] = cut_blocks(rows, matrix.columns, 1)
    key, exact = random_key(f"parameters of {matrix.key}"), slice(0, matrix.exact_columns)
    shards = [Shard(key, 0, table.numbered(0), exact) for table in tables]
    return GatherPlan(shards, matrix.columns, MessageLayout.of(shards, bits), matrix.exact)


class HostCodes:
    """The host's kernels, as GatherBatch. Messages have a hash of the module's name, and the last gather's digest.

    module: its name. modules: names of all by module_hash(), for errors. ranks: world's numbers; default: from 0.
    """

    def __init__(
        self,
        plan: GatherPlan,
        rank: int,
        codec: RankCodec,
        module: str = "",
        modules: Mapping[int, str] | None = None,
        ranks: Iterable[int] | None = None,
    ) -> None:
        self._plan, self._codec, self._own = plan, codec, plan.shards[rank]
        self._module, self._hash, self._modules = module, module_hash(module), modules or {}
        self._ranks = range(len(plan.shards)) if ranks is None else ranks
        self._digest = 0, 0
        self._exact = [slice(*span) for span in plan.exact]
        self._exact_sizes = [stop - start for start, stop in plan.exact]

    def encode(self, shard: Tensor, message: Tensor) -> None:
        """Write the message of the own shard. message: uint8[size_bytes]."""
        message.zero_()  # padding must not leak another object's memory
        messages = Messages.of(message.unsqueeze(0).numpy(), self._plan.message)
        messages.words[:, 0], messages.words[:, FINGERPRINT_WORDS:] = self._hash, self._digest
        self._codec.encode([self._own], [gradient_view(shard)], messages, GATHER_ROUND)
        for columns, [place] in self._exact_places(messages):
            place.copy_(shard[columns])

    def decode(self, gathered: Tensor, out: Tensor) -> None:
        """Write uint8[ranks, size_bytes] to [ranks * columns].

        Raises InputError if ranks gather different modules, or if their last weights differ.
        """
        everyone, rows = Messages.of(gathered.numpy(), self._plan.message), out.view(len(gathered), -1)
        if (everyone.words[:, 0] != self._hash).any():
            raise self._mismatch(everyone.words[:, 0].tolist())
        if digests_differ(everyone.words[:, FINGERPRINT_WORDS:]):
            raise damage(f"gathered weight of module {self._module!r}")
        total = sum_of_bits(everyone.exact)
        for shard, message, row in zip(self._plan.shards, torch.split(gathered, 1), rows, strict=True):
            messages = Messages.of(message.numpy(), self._plan.message)
            total += self._codec.average(shard, messages, gradient_view(row), GATHER_ROUND)  # of one rank
        self._digest = digest_words(total)
        for columns, places in self._exact_places(everyone):
            rows[:, columns].copy_(places)

    def _mismatch(self, hashes: Iterable[int]) -> InputError:
        known = self._modules
        names = (repr(known[each]) if each in known else "a module unknown here" for each in hashes)
        _, who = first_difference(dict(zip(self._ranks, names, strict=True)))
        return InputError(
            f"ranks gather different modules: {who}. All ranks must run the same modules in the same order: end all "
            "ranks, and start again from a checkpoint"
        )

    def _exact_places(self, messages: Messages) -> Iterable[tuple[slice, Tensor]]:
        """Return exact columns of shards, and their places in messages, float32[messages, columns]."""
        places = torch.from_numpy(messages.exact[:, : sum(self._exact_sizes)])
        return zip(self._exact, torch.split(places, self._exact_sizes, dim=1), strict=True)


def module_hash(module: str) -> int:
    return random_key(module) & LARGEST_WORD
