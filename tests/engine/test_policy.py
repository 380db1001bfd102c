"""CompressionPolicy: parameters that travel exactly, and threads of kernels."""

import logging
import os

import pytest
import torch

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_THREADS, default_threads
from byteps_thc._base.settings import warn_once
from byteps_thc._engine.door import choose_policy
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.parameters import apart
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig

LARGE = 1 << 20


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("lm_head.weight", "lm_head.weight"),
        ("lm_head", "lm_head.weight"),  # a module stands for its parameters
        ("lm_head", "lm_head"),  # a parameter of the model itself, or a tensor's own name
        ("layers.3", "layers.3.mlp.up.weight"),
        ("*.router", "layers.0.router.weight"),
        ("*.router.*", "layers.0.router.weight"),
        ("layers.[01].*", "layers.1.bias"),
        ("lm_head", "module.lm_head.weight"),  # DDP's prefix, where a front end gets names with it
        ("module.lm_head", "lm_head.weight"),  # and where it does not
        ("lm_head", "module._orig_mod.lm_head.weight"),
        ("_orig_mod.lm_head", "lm_head.weight"),
        ("layers.0.mlp", "layers.0._checkpoint_wrapped_module.mlp.weight"),
        ("layers.0.mlp", "layers.0._orig_mod.mlp.weight"),
        ("module.own", "module.own.weight"),
    ],
)
def test_a_pattern_selects_parameters_and_what_is_below_a_module(pattern: str, name: str) -> None:
    assert CompressionPolicy(exclude=(pattern,)).travels_exactly(name, LARGE)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("lm_head", "lm_head_2.weight"),
        ("lm_head", "decoder.lm_head.weight"),  # names begin at the model
        ("layers.1", "layers.10.weight"),
        ("LM_head", "lm_head.weight"),
        ("*.router.*", "router.weight"),
        ("weight", "lm_head.weight"),
        ("lm.head", "lmxhead.weight"),
    ],
)
def test_it_selects_no_others(pattern: str, name: str) -> None:
    assert not CompressionPolicy(exclude=(pattern,)).travels_exactly(name, LARGE)


def test_small_parameters_travel_exactly_whatever_their_name() -> None:
    policy = CompressionPolicy(bypass_elements=10, exclude=["x"])
    assert [policy.travels_exactly("y", elements) for elements in (9, 10)] == [True, False]


@pytest.mark.parametrize("given", [["b", "a"], ("a", "b", "a"), {"a", "b"}, "a, b"])
def test_the_order_of_the_patterns_is_no_setting_that_ranks_could_differ_in(given: object) -> None:
    policy = CompressionPolicy(exclude=given)
    assert policy.exclude == ("a", "b")
    assert policy.shared_settings()["exclude"] == ("a", "b")


@pytest.mark.parametrize("given", [[""], "a,,b", [1], 3, None])
def test_what_is_no_pattern_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="exclude"):
        CompressionPolicy(exclude=given)


def test_the_fingerprint_compares_the_patterns_where_no_ranks_do() -> None:
    """BytePS's workers."""
    buffer = GradientBuffer("x", torch.zeros(2000), (ParameterSlice("x", 0, 2000),))
    policies = [CompressionPolicy(exclude=exclude) for exclude in ((), ("y",), ("y", "z"))]
    layouts = {Layout.of_buffer(buffer, policy, None).extent.layout for policy in policies}
    assert len(layouts) == len(policies)


def test_large_excluded_parameters_have_parts_of_their_own() -> None:
    """With elements between parameters; small ones stay where they are."""
    names = {"a": (2, 100), "b": (100, 20_100), "c": (20_100, 40_100), "d": (40_103, 40_200), "e": (40_200, 40_210)}
    slices = tuple(ParameterSlice(name, *place) for name, place in names.items())
    buffer = GradientBuffer("x", torch.arange(40_220.0), slices)
    assert apart(buffer, CompressionPolicy(exclude=("z", "e"))) == [buffer]
    first, second, third = apart(buffer, CompressionPolicy(exclude=("b", "c", "e")))
    assert [part.gradient[0] for part in (first, second, third)] == [0, 100, 40_103]
    assert [part.gradient.numel() for part in (first, second, third)] == [100, 40_003, 117]
    assert second.parameters == (ParameterSlice("b", 0, 20_000), ParameterSlice("c", 20_000, 40_000))
    assert third.parameters == (ParameterSlice("d", 0, 97), ParameterSlice("e", 97, 107))
    assert len({part.key for part in (first, second, third, buffer)}) == 4
    buffer.gradient.zero_()
    assert not third.gradient.any()  # the same memory


def test_a_pattern_that_selects_nothing_is_one_warning_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    policy = CompressionPolicy(exclude=("lm_head", "*.ruoter.*", "embed"))
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        for rank in (0, 0, 1):
            policy.warn_of_unmatched(["lm_head.weight", "layers.0.router.weight", "embed.weight"], rank)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(
        "CompressionPolicy(exclude): '*.ruoter.*' selects none of the 3 parameters, such as 'lm_head"
    )


def test_front_ends_without_servers_have_the_narrow_rows_of_ranks() -> None:
    with_servers, among_ranks = choose_policy(None, network=NetworkConfig(["10.0.0.1"])), choose_policy(None)
    assert [among_ranks.travels_exactly("embedding", 1 << 20, row) for row in (31, 32)] == [True, False]
    assert [with_servers.travels_exactly("embedding", 1 << 20, row) for row in (7, 31)] == [True, False]


def test_rank_0_warns_that_nothing_is_compressed(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    choose_policy(None).warn_if_all_travel_exactly([("embedding", 1 << 20, 16), ("large", 1024, 0)], 0)
    assert not caplog.records
    for rank in (1, 0, 2):
        CompressionPolicy().warn_if_all_travel_exactly([(f"of {rank}", 7, 0)], rank)
        assert len(caplog.records) == (rank != 1)
    choose_policy(None).warn_if_all_travel_exactly([("embedding", 1 << 20, 16)], 0)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("cores", "local_ranks", "threads"),
    [(2, 1, 2), (2, 2, 1), (2, 4, 1), (64, 1, 8), (64, 8, 8), (64, 16, 4), (7, 2, 3)],
)
def test_default_is_the_share_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, cores: int, local_ranks: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert default_threads(local_ranks) == threads
    assert CompressionPolicy().thread_count(local_ranks) == threads
    assert CompressionPolicy(threads=3).thread_count(local_ranks) == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_ranks))  # torchrun's
    assert default_threads() == threads
    pool = Compressor(ServerCodes(), workers=1, worker=0).pool
    assert (1 if pool is None else pool.threads) == threads


@pytest.mark.parametrize("text", ["0", "-1", "two", "\u00b2"])
def test_a_damaged_environment_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(ConfigurationError, match="LOCAL_WORLD_SIZE must be a number of processes"):
        default_threads()


@pytest.mark.parametrize("threads", [0, MAX_THREADS + 1])
def test_threads_out_of_range(threads: int) -> None:
    with pytest.raises(ConfigurationError, match="threads"):
        Compressor(ServerCodes(), workers=1, worker=0, threads=threads)
    with pytest.raises(ConfigurationError, match="threads"):
        CompressionPolicy(threads=threads)


def test_ranks_may_have_different_numbers_of_threads() -> None:
    assert "threads" not in CompressionPolicy(threads=3).shared_settings()
