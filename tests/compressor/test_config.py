import logging
import traceback

import pytest

from byteps_thc import CompressionPolicy, Compressor, LookupTable, NetworkConfig, ServerCodes, Session
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.door import choose_scheme
from byteps_thc._scheme.adding.tables.selection import best_table
from byteps_thc.torch.settings import ThcCompression


def test_paper_and_uniform():
    paper = ServerCodes.paper().resolve(8)
    assert (paper.table, paper.value_bits) == (LookupTable.paper(), 8)
    assert ServerCodes.paper().resolve(9).value_bits == 16
    uniform = ServerCodes.uniform(4, p=1 / 32).resolve(17)
    assert uniform.table == LookupTable.uniform(4)
    assert uniform.value_bits == 8


@pytest.mark.parametrize("workers", [1, 4, 17, 18, 64])
def test_default_is_the_automatic_choice(workers):
    resolved = ServerCodes().resolve(workers)
    assert resolved.value_bits == (8 if workers <= 17 else 16)
    assert resolved.table == best_table(4, workers, resolved.value_bits)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bits": 9}, "bits: must be 1, 2, 3, 4, 5, 6, 7 or 8"),
        ({"granularity": 0}, "greater than or equal to 1"),
        ({"granularity": "large"}, "granularity: .*'large'"),
        ({"p": 0}, "p: .*greater than 0"),
        ({"p": 1.0}, "p: .*less than 1"),
        ({"rotation_block": 1000}, "power of two"),
        ({"rotation_block": 32}, "power of two"),
        ({"seed": -1}, "seed"),
        ({"partition_bytes": 1000}, "partition_bytes: must be a multiple of 256"),
        ({"bits": True}, r"bits: must be 1, .* \(given: True\)"),
        ({"seed": True}, r"seed: must be .*integer.* \(given: True\)"),
        ({"codes_per_packet": 100}, "codes_per_packet must be a multiple of 64, not 100"),
        ({"codes_per_packet": 64, "partition_bytes": 1 << 25}, "more than 65536 packets"),
        ({"bit": 4}, r"bit: ServerCodes has no such setting, did you mean bits\?"),
        ({"bits": 9, "seed": -1}, "bits.*; seed"),
    ],
)
def test_bad_settings_are_named(settings, reason):
    with pytest.raises(ConfigurationError, match=reason):
        ServerCodes(**settings)


def test_overflow_says_what_would_work():
    with pytest.raises(ConfigurationError, match=r"at most 8 workers or granularity at most 28 or value_bits=16"):
        ServerCodes.paper(value_bits=8).resolve(9)
    with pytest.raises(ConfigurationError, match="at most 65535"):
        ServerCodes(granularity=2000, p=1 / 32).resolve(33)
    with pytest.raises(ConfigurationError, match=r"use at most 1023 workers or granularity at most 63$"):
        ServerCodes(granularity=64, p=1 / 32).resolve(1024)


@pytest.mark.parametrize("codes", [CompressionPolicy(), ServerCodes, {"bits": 4}, None])
def test_what_takes_thc_alone_refuses_the_rest_by_name(codes):
    with pytest.raises(ConfigurationError, match=r"codes is .*, and Compressor takes a ServerCodes"):
        Compressor(codes, workers=2, worker=0)
    with pytest.raises(ConfigurationError, match=r"codes is .*, and Session takes a ServerCodes"):
        Session(["127.0.0.1:1"], job=1, worker=0, workers=2, codes=codes)
    with pytest.raises(ConfigurationError, match=r"codes is .*, and NetworkConfig takes a ServerCodes"):
        NetworkConfig(["127.0.0.1:1"], codes=codes)


@pytest.mark.parametrize("workers", [0, 1025])
def test_number_of_workers_is_checked(workers):
    with pytest.raises(ConfigurationError, match=rf"workers must be in 1 \.\. 1024, not {workers}"):
        ServerCodes().resolve(workers)


def test_servers_take_no_more_workers_than_packets_have_bits_for():
    """Before anything is sent: nobody answers at that address."""
    with pytest.raises(ConfigurationError, match=r"thc-ps sums .* 64 workers, and a switch for 32, not 65: average"):
        Session(["127.0.0.1:1"], job=1, worker=0, workers=65, codes=ServerCodes())


def test_8_bit_codes_of_many_ranks_leave_codes_over():
    assert ServerCodes(bits=8).resolve(257).table.granularity == 255
    assert ServerCodes(bits=8).resolve(1024).table.granularity == 63
    with pytest.raises(ConfigurationError, match=r"granularity 255 .* at most 257 workers or granularity at most 63"):
        ServerCodes.uniform(8).resolve(1024)


def test_config_is_frozen_and_round_trips():
    config = ServerCodes.paper(seed=2**64 - 1)
    for each in (config, ServerCodes(), ServerCodes(bits=5), ServerCodes(error_feedback=True)):
        assert ServerCodes(**each.model_dump()) == each
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1


def test_error_feedback_is_off_unless_asked_for():
    """As trainings say, with all bits (evaluation/claims.md); the paper's setting has it."""
    for bits in range(1, 9):
        on, off = (ServerCodes(bits=bits, error_feedback=setting).resolve(4) for setting in (True, False))
        assert ServerCodes(bits=bits).resolve(4) == off
        # Workers that have it would decode another average than those that do not: they are refused.
        assert off.shared_hash != on.shared_hash
    assert ServerCodes.paper().resolve(4).error_feedback
    assert not ServerCodes.paper(error_feedback=False).resolve(4).error_feedback
    with pytest.raises(ConfigurationError, match="error_feedback"):
        ServerCodes(error_feedback="on demand")


def test_settings_from_the_environment(monkeypatch, tmp_path):
    assert ServerCodes.from_environment() == ServerCodes()
    monkeypatch.setenv("THC_CONFIG", "bits=4, granularity=30,p=1/32,rounding=independent,error_feedback=true")
    assert ServerCodes.from_environment() == ServerCodes.paper()
    monkeypatch.setenv("THC_CONFIG", "granularity=auto")
    assert ServerCodes.from_environment() == ServerCodes()
    file = tmp_path / "thc.toml"
    file.write_text("bits = 2\nerror_feedback = false\n")
    monkeypatch.setenv("THC_CONFIG", str(file))
    assert ServerCodes.from_environment() == ServerCodes(bits=2, error_feedback=False)


def test_a_config_that_a_program_gives_wins_over_the_variable(monkeypatch, caplog):
    monkeypatch.setenv("THC_CONFIG", "bits=4,seed=9,down_bits=6")
    with caplog.at_level(logging.WARNING, logger="byteps_thc"):
        choose_scheme(NetworkConfig([], codes=ServerCodes(bits=4)), {})
        ThcCompression(ServerCodes(bits=4, seed=9), route="servers")
    assert caplog.messages == [
        f"THC_CONFIG: ignored: {ignored}; the program sets a ServerCodes, which overrides the variable"
        for ignored in ("seed=9, down_bits=6", "down_bits=6")
    ]
    monkeypatch.setenv("THC_CONFIG", "sede=9")
    codes = ServerCodes()
    for front_end in (lambda: choose_scheme(NetworkConfig([], codes=codes), {}), lambda: ThcCompression(codes)):
        with pytest.raises(ConfigurationError, match="THC_CONFIG: sede: there is no such setting, did you mean seed"):
            front_end()


def test_a_wrong_setting_is_told_without_pydantics_traceback():
    with pytest.raises(ConfigurationError) as raised:
        ServerCodes(bit=4)
    assert "ValidationError" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bits", "'bits' is not setting=value; write THC_CONFIG=bits=4,seed=7"),
        ("bits=", "'bits=' has no value: omit bits for its default"),
        ("bits=4,bits=3", "bits is given twice"),
        ("p=1/0", "p: .*'1/0'"),
        ("bit=4", r"^THC_CONFIG: bit: there is no such setting, did you mean bits"),
        ("granulrity=5", r"granulrity: there is no such setting, did you mean granularity\?$"),
        ("absent.toml", "No such file"),
        ("granularity=30,seed=-1", r"seed: .*\(from THC_CONFIG\)"),
    ],
)
def test_mistakes_in_the_environment_are_named(monkeypatch, text, reason):
    monkeypatch.setenv("THC_CONFIG", text)
    with pytest.raises(ConfigurationError, match=reason):
        ServerCodes.from_environment()
