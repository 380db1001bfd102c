"""Simulated packet loss: sums of the arrived packets, none where they are too few, synchronisation."""

import itertools

import torch
from averages.averagers import make
from averages.lossy_averager import CODES_PER_PACKET, Losses, LossyAverager
from trainings.replicas import Replicas

from byteps_thc import ServerCodes

WORKERS, PACKETS = 4, 40
COORDINATES = PACKETS * CODES_PER_PACKET


def gradients() -> torch.Tensor:
    return torch.randn(WORKERS, COORDINATES, generator=torch.Generator().manual_seed(1))


def packets_of(losses: Losses) -> list[list[frozenset[int]]]:
    """By worker and packet, a rotation block of 8-bit codes: the subset of workers whose mean it got; none: zeros."""
    config = ServerCodes(bits=8, rotation_block=CODES_PER_PACKET, rounding="independent", value_bits=16)
    own = gradients()
    averages = LossyAverager(config, WORKERS, COORDINATES, losses, seed=3).average(own)
    numbers = range(WORKERS)
    subsets = [of for size in range(WORKERS + 1) for of in itertools.combinations(numbers, size)]
    means = torch.stack([own[list(of)].mean(dim=0) if of else torch.zeros(COORDINATES) for of in subsets])
    found = []
    for average in averages:
        errors = (average - means).view(len(subsets), PACKETS, CODES_PER_PACKET).square().sum(dim=2)
        assert bool((errors.min(dim=0).values < 0.01 * CODES_PER_PACKET).all())
        found.append([frozenset(subsets[i]) for i in errors.argmin(dim=0).tolist()])
    return found


def test_without_losses_all_get_the_servers_average() -> None:
    config = ServerCodes(bits=4, granularity=20, p=1 / 512)
    averager = LossyAverager(config, WORKERS, COORDINATES, Losses(needed=WORKERS), seed=1)
    expected = make(config, WORKERS, [slice(0, COORDINATES)])
    for _ in range(2):
        average = expected.average(gradients())
        assert all(torch.equal(own, average) for own in averager.average(gradients()))
    assert averager.missing == 0


def test_a_packet_has_the_mean_of_those_that_are_there_or_nothing() -> None:
    found = packets_of(Losses(lost=0.3))
    for of_all in zip(*found, strict=True):
        assert len({own for own in of_all if own}) <= 1, "those that got a sum got the same"
    sizes = [len(own) for of_all in found for own in of_all]
    assert {1, 2, 3, 4} < set(sizes)
    assert 0.6 < sum(map(bool, sizes)) / len(sizes) < 0.8, "each loses its own sums, too"


def test_too_few_contributions_are_no_sum() -> None:
    found = packets_of(Losses(lost=0.3, needed=WORKERS))
    assert {len(own) for of_all in found for own in of_all} == {0, WORKERS}


def test_stragglers_are_in_no_packet_of_a_round() -> None:
    found = {own for of_all in packets_of(Losses(stragglers=1)) for own in of_all}
    assert len(found) == 1
    assert {len(own) for own in found} == {WORKERS - 1}


def test_the_missing_share_is_what_workers_did_not_get() -> None:
    averager = LossyAverager(ServerCodes(), WORKERS, COORDINATES, Losses(stragglers=1), seed=1)
    averager.average(gradients())
    assert averager.missing == 0.25


def test_synchronised_replicas_go_on_alike() -> None:
    replicas = Replicas.of("MLP", 2, 10, "SGD", 1)
    assert replicas.drift() == 0
    own = replicas.gradients()
    assert not torch.equal(*own), "each has its own batches"
    replicas.update(own)
    assert replicas.drift() > 0
    replicas.synchronize()
    assert replicas.drift() == 0
    replicas.update(own.mean(dim=0).expand(2, -1))
    assert replicas.drift() == 0, "momenta are the same, too"
