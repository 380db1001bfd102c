"""The version of the arithmetic has every bit that codes or averages depend on, and every route refuses another."""

import hashlib
import types
import zlib
from collections.abc import Iterator, Mapping

import _core_test as core
import numpy as np
import pytest
from reference import Key

from byteps_thc import Compressor, ConfigurationError, ServerCodes
from byteps_thc._base.arrays import everybody
from byteps_thc._base.built import check_arithmetic
from byteps_thc._base.wire.layout import ARITHMETIC
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._native import _comm, _core
from byteps_thc._net.byteps.push_pull import require_same_arithmetic
from byteps_thc._net.handshake import require_equal, with_arithmetic
from byteps_thc._scheme import shares
from byteps_thc._scheme.adding.server_codes import ResolvedCodes
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.arithmetic import DIGEST_BITS, arithmetic_version, golden_digest, version_name
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan
from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab import block_rounds as rounds

#: The number of the arithmetic, and digests of codes and averages. A change of a digest raises the number, too.
GOLDEN = {"arithmetic": 4, "small": "ecd08b011e49105746b90fd815794171", "large": "f249cdba1bc99cca8f23e713e2f86b38"}


def large_digest() -> str:
    """More cases than a start has time for: every code width, blocks of all sizes, ends, residuals, half floats."""
    digest = hashlib.blake2b(digest_size=16)
    random = np.random.default_rng(31)
    values = {1: (0, 9), 2: (0, 3, 7, 9), 3: (0, 1, 2, 4, 5, 7, 8, 9), 8: tuple(range(256))}
    cases = [(bits, block) for bits in values for block in (64, 256, 8192)]
    for bits, block in cases:
        table = LookupTable(bits, values[bits][-1], p=0.25, values=values[bits], cost=0.0)
        rounding = "independent" if bits == 2 else "stratified"
        config = ServerCodes(rotation_block=block, error_feedback=True, seed=bits, rounding=rounding)
        compressor = Compressor(ResolvedCodes(config, 3, table, value_bits=16), workers=3, worker=2, threads=1)
        plan = BlockPlan((128, 4096), (RowSpan(5000, 8000, 50),) if block == 8192 else ())
        partition = compressor.partition("golden", 9000, plan=plan)
        for round in range(2):
            gradient = random.integers(-500, 500, 9000).astype(np.float16 if block == 64 else np.float32) / 8
            compressor.measure(partition, gradient, round=round)
            codes = compressor.encode(partition, np.full(len(partition.norms), 900, np.float32))
            sums = np.zeros(partition.padded, np.uint16)
            for worker in range(3):
                _core.lookup_sum(codes, table.array, sums, bits=bits, add=worker > 0)
            average = np.zeros(9000, np.float32)
            compressor.decode(partition, sums, everybody(3), average)
            for bits_of in (codes, average):
                digest.update(bits_of.tobytes())
    for bits in range(1, 9):
        digest.update(averages_among_ranks(bits, random))
    return digest.hexdigest()


def averages_among_ranks(bits: int, random: np.random.Generator) -> bytes:
    """Messages of ranks and of an owner, and averages."""
    tensors = [(0, 100), (130, 4096), (4096, 9000)]
    key, blocks, dtype = Key(bits, 7, bits), rounds.blocks_of(*tensors), np.float16 if bits % 2 else np.float32
    gradients = (random.integers(-500, 500, (3, 9000)) * 2.0 ** random.integers(-9, 4, 9000)).astype(dtype)
    sent = [rounds.encode(x, blocks, bits, key, rank=rank, ranks=3, kernels=core) for rank, x in enumerate(gradients)]
    own = rounds.recode(sent, blocks, bits, key, 9 - bits, kernels=core)
    average = rounds.decode([own], blocks, 9 - bits, key, np.zeros(9000, dtype), kernels=core, down=True)
    return b"".join(part.tobytes() for message in (*sent, own) for part in message) + average.tobytes()


@pytest.fixture(params=core.instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in ("adding.compressor", "arithmetic"):  # with the same kernels, of which one set can be chosen
        monkeypatch.setattr(f"byteps_thc._scheme.{module}._core", core)
    core.use_instruction_set(request.param)
    yield request.param
    core.use_instruction_set(None)


@pytest.mark.usefixtures("instruction_set")
def test_golden_bits_change_with_the_number_only() -> None:
    now = {"arithmetic": ARITHMETIC, "small": golden_digest().hex(), "large": large_digest()}
    assert now == GOLDEN, "bump `arithmetic` in wire.toml, and write the new digests here (CONTRIBUTING.md)"


def test_all_parts_have_the_number() -> None:
    assert _core.ARITHMETIC == _comm.ARITHMETIC == ARITHMETIC < 256
    assert arithmetic_version() >> DIGEST_BITS == ARITHMETIC
    assert version_name(0x0100_A3F2) != version_name(0x01_A3F2) == "1 (digest 0xa3f2)"


@pytest.mark.parametrize("attributes", [{}, {"ARITHMETIC": ARITHMETIC + 1}])
def test_a_module_of_another_version_is_refused(attributes: Mapping[str, int]) -> None:
    module = types.ModuleType("byteps_thc._native._core")
    vars(module).update(attributes, __file__="/old/_core.so")
    with pytest.raises(
        ImportError, match=r"/old/_core\.so is left over from another version.* Install byteps_thc again"
    ):
        check_arithmetic(module)


def test_random_bits_of_another_key_are_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refactoring that forgets to bump the number."""
    before = golden_digest()
    key = Compressor._key
    monkeypatch.setattr(Compressor, "_key", lambda self, p: key(self, p) | {"tensor": p.tensor + 1})
    assert golden_digest() != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zlib", types.SimpleNamespace(crc32=lambda data: zlib.crc32(data) ^ 1)),
        ("NARROWEST_ROW", 400),
        ("BLOCK", 32),
        ("_SHORTEST_SHARE", 1 << 20),
        ("even_cuts", lambda count, parts: [-(-count * part // parts) for part in range(parts + 1)]),
    ],
)
def test_other_keys_and_shares_are_another_version(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = golden_digest()
    monkeypatch.setattr(shares, name, value)
    assert golden_digest() != before


def test_ranks_of_other_versions_are_named() -> None:
    others = {0: with_arithmetic({"seed": 0}), 1: {"arithmetic": "2 (digest 0x0001)", "seed": 1}, 2: {"seed": 0}}
    with pytest.raises(ConfigurationError) as refused:
        require_equal(others)
    said = str(refused.value)
    assert said.startswith("ranks have different versions of byteps_thc's arithmetic: ")
    for words in (
        f"{version_name(arithmetic_version())} on rank 0",
        "2 (digest 0x0001) on rank 1",
        "unknown on rank 2",
    ):
        assert words in said
    assert "Install the same version of byteps_thc" in said


def test_processes_of_byteps_are_named() -> None:
    versions = np.array([0x01A3F2, 0x01A3F2, 0x02A3F2], np.int32)
    require_same_arithmetic(versions[:2], 0)
    with pytest.raises(
        ConfigurationError, match=r"1 \(digest 0xa3f2\) on this one \(0\), 2 \(digest 0xa3f2\) on process 2"
    ):
        require_same_arithmetic(versions, 0)


def test_fingerprints_of_another_version_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = RankCodes().resolve(2).identity
    known = Fingerprints(identity, 0).of(["weight"], 1000, "weight")
    monkeypatch.setattr("byteps_thc._engine.fingerprint.arithmetic_version", lambda: 3 << DIGEST_BITS)
    assert Fingerprints(identity, 0).of(["weight"], 1000, "weight").hash != known.hash
