"""Checks that all workers average the same gradient, with the norms of every piece, before its codes are sent.

Names, sizes, settings, round and loss scale are hashed to a fingerprint f of 31 bits. Two words travel in front of the
norms, f and 2^31 - 1 - f, which have no sign bit. Their maxima over the workers return: M, the largest f, and
2^31 - 1 - m, with the smallest. If all f are equal, every worker gets its own words back. Otherwise a worker with f < M
gets another first word, and a worker with f > m another second word. All workers raise an error at the same piece,
nobody waits for its codes, and M or m is another worker's fingerprint. With a quorum, only workers in the sum count.

f = (hash of names, sizes, settings + round + hash of the loss scale) mod 2^31: a worker that knows another's gradient
can compute its round, and can try likely loss scales.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from byteps_thc._base.arrays import F32
from byteps_thc._base.errors import InputError, TransportError
from byteps_thc._base.limits import LARGEST_WORD
from byteps_thc._net.transport import FINGERPRINT_WORDS
from byteps_thc._scheme.arithmetic import arithmetic_version

_MODULUS = LARGEST_WORD + 1
#: Most rounds between two workers for a foreign fingerprint to count as a known gradient: chance hits grow with it. For
#: the same gradient, whose rounds may differ after other checkpoints, and for other gradients.
_NEAR_ROUNDS_SAME = 1 << 20
_NEAR_ROUNDS_OTHER = 1 << 10
#: Likely loss scales of another worker: a GradScaler begins with 2^16, doubles and halves.
_LIKELY_SCALES = tuple(2.0**exponent for exponent in range(-32, 65))


@dataclass(frozen=True)
class Known:
    label: str
    hash: int


class Fingerprints:
    """A worker's pieces, to name others' gradients in errors. settings: `identity` of its codes."""

    def __init__(self, settings: tuple[object, ...], worker: int) -> None:
        self._settings, self._worker = (arithmetic_version(), *settings), worker
        self._known: dict[tuple[tuple[str, ...], int, str, str], Known] = {}
        self._scale = self._scale_before = 1.0

    def use_loss_scale(self, scale: float) -> None:
        """Note the factor of later gradients. Call it while none is under way."""
        if scale != self._scale:
            self._scale, self._scale_before = scale, self._scale

    def words(self, known: Known, round: int) -> tuple[int, int]:
        fingerprint = _fingerprint(known, round, self._scale)
        return fingerprint, LARGEST_WORD - fingerprint

    def of(self, names: Sequence[str], columns: int, label: str, layout: str = "") -> Known:
        """Return the identity of a piece, and remember it.

        label: its name in errors, with its size. layout: text of the gradient's contents (agreement.Contents.layout).
        """
        key = (tuple(names), columns, label, layout)
        known = self._known.get(key)
        if known is None:
            digest = hashlib.blake2b(repr((key, self._settings)).encode(), digest_size=4).digest()
            known = self._known[key] = Known(label, int.from_bytes(digest) % _MODULUS)
        return known

    def difference(self, own: Known, round: int, received: npt.NDArray[np.int32]) -> InputError | None:
        """Return the error of ranks that average different gradients; None if all average the same.

        received: int32[ranks, 4], each rank's fingerprint and digest_words(), which came with codes.
        """
        largest, complement = received[:, :FINGERPRINT_WORDS].max(axis=0).tolist()
        if (largest, complement) != self.words(own, round):
            return self.mismatch(own, round, (largest, complement), "No average was written")
        if not digests_differ(received[:, FINGERPRINT_WORDS:]):
            return None
        digests = received[:, FINGERPRINT_WORDS].tolist()
        odd = [str(rank) for rank, digest in enumerate(digests) if 2 * digests.count(digest) < len(digests)]
        who = f" (worker {', '.join(odd)} unlike most)" if odd else ""
        return damage(f"average of {own.label} before round {round}", who)

    def mismatch(
        self, own: Known, round: int, maxima: tuple[int, int], outcome: str = "Its codes were not sent"
    ) -> InputError:
        """Return the error that names both sides. maxima: of the two words. outcome: fate of the gradient."""
        others = maxima[0], LARGEST_WORD - maxima[1]
        # A device tells some steps later, after the scaler has halved the scale because of the mismatch.
        used = (scale for scale in (self._scale, self._scale_before) if _fingerprint(own, round, scale) in others)
        own_scale = next(used, self._scale)
        guesses = [guess for other in others for guess in self._guesses(own, round, own_scale, other)]
        here = f"{own.label} in round {round}"
        likely = (_other_scale(own, round, own_scale, other) for other in others)
        scale = next((scale for scale in likely if scale is not None), None)
        if scale is not None:
            here = f"{own.label} in round {round}, scaled by {own_scale:g}"
            theirs = f"another one the same, scaled by {scale:g}. Is it the same GradScaler? Loss scales must be"
        elif not guesses:
            theirs = (
                "another one a gradient that is unknown here. Names, sizes, types, settings, loss scales and "
                "byteps_thc's version must be"
            )
        elif (nearest := min(guesses))[1] == own.label:
            theirs = (
                f"another one the same in round {nearest[2]}. Have all workers loaded the checkpoint of the same "
                "step? Names, sizes and rounds must be"
            )
        else:
            theirs = f"another one {nearest[1]} in round {nearest[2]}. Names, sizes, types and rounds must be"
        order = "" if scale is not None else ", in the same order"
        return InputError(
            f"workers average different gradients: this one ({_name(self._worker)}) {here}, {theirs} the same on all "
            f"workers{order}. {outcome}; no worker can go on: end all of them, and start again with the same gradients "
            "and checkpoints"
        )

    def _guesses(self, own: Known, round: int, scale: float, other: int) -> list[tuple[int, str, int]]:
        """Return readings of another's fingerprint: (rounds from here, label, round)."""
        guesses = []
        if other == _fingerprint(own, round, scale):
            return []
        for known in list(self._known.values()):
            ahead = (other - _fingerprint(known, round, scale) + _MODULUS // 2) % _MODULUS - _MODULUS // 2
            near = _NEAR_ROUNDS_SAME if known is own else _NEAR_ROUNDS_OTHER
            if abs(ahead) <= near and round + ahead >= 0:
                guesses.append((abs(ahead), known.label, round + ahead))
        return guesses


def damage(what: str, who: str = "") -> InputError:
    """Return the error of ranks with different averages. who: the ranks unlike most, if known."""
    return InputError(
        f"the last {what} differs between workers{who}: a processor, a GPU or the network has changed bits. End all "
        "workers, and resume from a checkpoint of before; if it comes again, run thc doctor, on GPUs with --device, on "
        "every host, and leave out the host that differs"
    )


def digest_words(digest: int) -> tuple[int, int]:
    """Return a digest modulo 2^32 in two words, like a fingerprint; (0, 0) stands for no average yet."""
    folded = (digest ^ digest >> 31 & 1) & LARGEST_WORD
    return folded, LARGEST_WORD - folded


def digests_differ(words: npt.NDArray[np.int32]) -> bool:
    """Whether digests of ranks differ. words: int32[ranks, 2], of digest_words()."""
    largest, complement = words.max(axis=0)
    return int(largest) + int(complement) > LARGEST_WORD


def sum_of_bits(values: F32) -> int:
    """Return the sum of the bits of values that are not NaN, modulo 2^32, as decode_blocks() does."""
    return int(values.view(np.uint32)[~np.isnan(values)].sum(dtype=np.uint32))


def _name(worker: int) -> str:
    """Return the worker's name for users, with its rank if the workers are only some of the ranks."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else worker
    return f"worker {worker}" if rank == worker else f"worker {worker}, rank {rank}"


def _fingerprint(known: Known, round: int, scale: float) -> int:
    return (known.hash + round + _scale_hash(scale)) % _MODULUS


def _other_scale(own: Known, round: int, own_scale: float, other: int) -> float | None:
    """Return the loss scale that explains the other's fingerprint of the same piece and round; None: no likely one."""
    others = (scale for scale in _LIKELY_SCALES if scale != own_scale)
    return next((scale for scale in others if other == _fingerprint(own, round, scale)), None)


@functools.lru_cache(maxsize=256)
def _scale_hash(scale: float) -> int:
    """Return 1 for no scale at all."""
    if scale == 1:
        return 0
    return int.from_bytes(hashlib.blake2b(scale.hex().encode(), digest_size=4).digest()) % _MODULUS


class NormMessage:
    """The message before the codes of a piece: fingerprint and norms, in memory that every round uses again.

    norms: their number. compared_words: of the transport. sent: float32, for Transfer.send_norms(). The words are
    compared as integers, which order like norms, with NaN above infinity, because the sign of NaN is removed. digest:
    of the last results (Transfer.digest()); it travels in two words, like a fingerprint, on routes where it may differ.
    """

    def __init__(self, fingerprints: Fingerprints, known: Known, norms: int, compared_words: int) -> None:
        self._fingerprints, self._known = fingerprints, known
        self._round, self._own = 0, [0] * compared_words
        self.digest = 0
        self.sent: F32 = np.zeros(compared_words + norms, np.float32)
        self._max_norms: F32 = np.zeros(norms, np.float32)

    def write(self, round: int, norms: F32) -> None:
        compared, digest = len(self._own), self.digest & LARGEST_WORD
        both = (*self._fingerprints.words(self._known, round), digest, LARGEST_WORD - digest)
        self._round, self._own = round, list(both[:compared])
        words = self.sent.view(np.int32)
        words[:compared] = self._own
        np.bitwise_and(norms.view(np.int32), LARGEST_WORD, out=words[compared:])

    def take(self, received: F32) -> F32:
        """Return the maximum norms from Transfer.wait_norms()'s result.

        Raises InputError on all workers unless all average the same, and TransportError unless all got the same results
        before. Zeros mean that a quorum left this worker behind: no error.
        """
        maxima = received[: len(self._own)].view(np.int32).tolist()
        largest, complement = maxima[:FINGERPRINT_WORDS]
        left_behind = largest == complement == 0  # real maxima add up to 2^31 - 1 or more
        if not left_behind and [largest, complement] != self._own[:FINGERPRINT_WORDS]:
            raise self._fingerprints.mismatch(self._known, self._round, (largest, complement))
        if not left_behind and maxima != self._own:
            raise TransportError(
                f"the last average of {self._known.label} differs between workers: a packet was damaged on the way "
                "from the switch, whose packets carry no checksum. End all workers, and resume from a checkpoint of "
                "before; if it comes again, look for errors of links (ethtool -S) and of what is between switch and "
                "workers"
            )
        self._max_norms[:] = received[len(self._own) :]
        return self._max_norms
