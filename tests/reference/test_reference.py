"""The oracle itself, against published vectors and definitions."""

import numpy as np
import pytest
import reference
from reference import Key

from byteps_thc._scheme.rounding import Rounding

PI_COUNTER = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_KEY = 0x299F31D0_A4093822
ONES = (0xFFFFFFFF,) * 4


@pytest.mark.parametrize(
    ("rounds", "counter", "seed", "expected"),
    [  # Random123's kat_vectors for philox4x32
        (7, (0, 0, 0, 0), 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (7, ONES, 2**64 - 1, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        (7, PI_COUNTER, PI_KEY, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
        (10, (0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, ONES, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (10, PI_COUNTER, PI_KEY, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_philox_gives_the_published_vectors(rounds, counter, seed, expected):
    block, domain, tensor, round_ = counter
    words = reference.philox(np.array([block], np.uint64), domain, Key(seed, tensor, round_), rounds)
    assert tuple(words[0].tolist()) == expected


def test_hadamard_is_the_sylvester_matrix():
    matrix = np.array([[1.0]])
    for _ in range(6):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = np.random.default_rng(1).integers(-100, 100, 64).astype(np.float32)
    np.testing.assert_array_equal(reference.hadamard(x), matrix @ x)


@pytest.mark.parametrize(
    ("coordinates", "rotation_block", "sizes"),
    [
        (0, 8192, []),
        (1, 8192, [64]),
        (64, 64, [64]),
        (65, 8192, [128]),
        (8192, 8192, [8192]),
        (21000, 8192, [8192, 8192, 4096, 512, 64]),
    ],
)
def test_blocks_shrink_towards_the_end(coordinates, rotation_block, sizes):
    assert reference.block_sizes(coordinates, rotation_block) == sizes


def test_signs_and_rounding_bits_are_balanced_and_keyed():
    key, count = Key(3, 1, 2), 1 << 16
    assert abs(reference.signs(count, key).sum()) < 6 * count**0.5
    bits = reference.rounding_bits(count, key, Rounding(1, 0))
    assert abs(bits.mean() - 32767.5) < 6 * 65536 / 12**0.5 / count**0.5
    assert len(np.unique(bits)) > 0.6 * 65536
    for other in (Key(4, 1, 2), Key(3, 2, 2), Key(3, 1, 3)):
        assert (reference.signs(count, other) != reference.signs(count, key)).mean() > 0.4
    assert (reference.rounding_bits(count, key, Rounding(2, 0)) != bits).mean() > 0.9


def test_a_phase_turns_the_rounding_bits():
    key = Key(3, 1, 2)
    without, turned = (reference.rounding_bits(1000, key, Rounding(1, phase)) for phase in (0, 0xC001))
    assert turned.tolist() == [(bits + 0xC001) % 65536 for bits in without.tolist()]


def test_packing_is_most_significant_bit_first():
    assert reference.pack(np.array([0x1, 0xF, 0x8], np.uint8), 4).tobytes() == bytes.fromhex("1f80")
    assert reference.pack(np.array([0b101, 0b011, 0b110], np.uint8), 3).tobytes() == bytes([0b10101111, 0b00000000])


def test_non_finite_norms_win():
    worst = reference.max_norms([np.array([1, np.inf, np.nan], np.float32), np.array([2, 5, np.inf], np.float32)])
    np.testing.assert_array_equal(worst, np.array([2, np.inf, np.nan], np.float32))
