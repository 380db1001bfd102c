"""Optimizers of a process have their own names of parameters, jobs and local ports."""

import gc

import pytest
import torch

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.wire.layout import MAX_JOB_ID
from byteps_thc._net.byteps.process import Claims
from byteps_thc._net.session import UdpConfig
from byteps_thc.torch import Compression
from byteps_thc.torch.optimizer.place import NamedParameter, claim_place


def parameters_of(*names):
    return [NamedParameter(name, torch.zeros(4), index) for index, name in enumerate(names)]


def network(**settings):
    return Compression.thc(servers=["10.0.0.1"], **settings)


@pytest.mark.parametrize("second", [Compression.none, Compression.fp16, Compression.thc(route="servers"), network()])
def test_two_optimizers_with_equal_names(second):
    claims = Claims()
    _, first = claim_place(claims, parameters_of("weight", "bias"), Compression.none)
    with pytest.raises(ConfigurationError, match=r"'bias'.* named_parameters=module.named_parameters\(prefix="):
        claim_place(claims, parameters_of("bias", "scale"), second)
    _, other = claim_place(claims, parameters_of("decoder.bias", "scale"), second)  # an error has claimed nothing
    first.release()
    claim_place(claims, parameters_of("weight", "bias"), second)
    assert claims.taken(["scale"]), other


def test_the_error_lists_a_few_names():
    claims = Claims()
    names = [f"layer{number}.weight" for number in range(20)]
    _, claim = claim_place(claims, parameters_of(*names), Compression.none)
    with pytest.raises(ConfigurationError) as raised:
        claim_place(claims, parameters_of(*names), Compression.none)
    assert "'layer2.weight', ...," in str(raised.value)
    assert "layer3" not in str(raised.value)
    claim.release()


def test_names_of_an_optimizer_that_is_garbage_are_free():
    """Whenever Python would have collected it: workers must not differ in that."""
    claims = Claims()
    gc.disable()
    try:
        holder = [claim_place(claims, parameters_of("weight"), Compression.none)]
        holder.append(holder)
        del holder
        assert claims.taken(["weight"])
        claim_place(claims, parameters_of("weight"), Compression.none)
    finally:
        gc.enable()


def test_nothing_is_claimed_after_a_shutdown():
    claims = Claims()
    _, claim = claim_place(claims, parameters_of("weight"), network())
    claims.clear()
    assert claim_place(claims, parameters_of("weight"), network())[0].job == 1
    claim.release()


def test_each_optimizer_has_jobs_of_its_own():
    claims = Claims()
    first, claim = claim_place(claims, parameters_of("a"), network(lanes=2))
    second, _keep = claim_place(claims, parameters_of("b"), network(lanes=3))
    third, _keep_too = claim_place(claims, parameters_of("c"), network(lanes=1))
    assert [c.network_of_lane(0).job for c in (first, second, third)] == [1, 3, 6]
    assert second.network_of_lane(2).job == 5
    claim.release()
    wide, _keep_three = claim_place(claims, parameters_of("d"), network(lanes=3))
    narrow, _keep_four = claim_place(claims, parameters_of("e"), network(lanes=2))
    assert (wide.job, narrow.job) == (7, 1)


def test_jobs_that_the_program_gives_stay():
    claims = Claims()
    given = [claim_place(claims, parameters_of(str(job)), network(lanes=2, job=job)) for job in (1, 20, 3)]
    assert [compression.job for compression, _ in given] == [1, 20, 3]


def test_there_is_no_job_left():
    claims = Claims()
    _, _keep = claim_place(claims, parameters_of("a"), network(lanes=1, job=MAX_JOB_ID))
    with pytest.raises(ConfigurationError, match=f"no 2 free job number.* {MAX_JOB_ID}.*smaller THC_JOB"):
        claim_place(claims, parameters_of("b"), network(lanes=2, job=MAX_JOB_ID - 1))


def test_each_optimizer_binds_ports_of_its_own():
    claims = Claims()
    settings = {"backend": UdpConfig(local="10.0.0.5:6000"), "lanes": 2}
    optimizers = [claim_place(claims, parameters_of(str(job)), network(job=job, **settings)) for job in (1, 50)]
    ports = [compression.network_of_lane(lane).backend.local for compression, _ in optimizers for lane in range(2)]
    assert ports == [f"10.0.0.5:{port}" for port in (6000, 6001, 6002, 6003)]
    assert [compression.job for compression, _ in optimizers] == [1, 50]


@pytest.mark.parametrize("local", ["10.0.0.5", "10.0.0.5:0"])
def test_a_port_that_the_kernel_chooses_stays_open(local):
    claims = Claims()
    backend = UdpConfig(local=local)
    optimizers = [claim_place(claims, parameters_of(name), network(backend=backend)) for name in "ab"]
    assert [compression.backend for compression, _ in optimizers] == [backend, backend]
