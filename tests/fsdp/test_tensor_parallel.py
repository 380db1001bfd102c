"""FSDP2 over a dimension of 2 x 2 real ranks; tensor or expert parallelism over the other dimension is left alone."""

import pytest
import torch
from known_gradients import nmse
from reports import Reports
from torch import Tensor

#: Errors of averages with 8 bits one way; of gradients with weights of 8 bits, too.
LIMITS = {"gradients": 3e-4, "both": 0.02}


def equal(one: dict[str, Tensor], other: dict[str, Tensor], names: list[str]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in names)


def of(reports: Reports, split: str, how: str, what: str) -> list[dict[str, Tensor]]:
    return [report["tensor_parallel"][split][how][what] for report in reports]


@pytest.mark.parametrize("how", ["gradients", "both"])
@pytest.mark.parametrize("split", ["even", "uneven"])
def test_gradients_are_those_of_plain_fsdp(two_replicas: Reports, split: str, how: str) -> None:
    plain = of(two_replicas, split, "plain", "whole")[0]
    for averages in of(two_replicas, split, how, "whole"):
        assert averages.keys() == plain.keys()
        errors = {name: nmse(average, plain[name]) for name, average in averages.items()}
        assert max(errors.values()) < LIMITS[how], errors
        # All ranks have the final norm, so it travels exactly beside a table that is split unevenly.
        exact = {"norm.weight", "norm.bias"} if (split, how) == ("uneven", "gradients") else set()
        assert {name for name, error in errors.items() if error < 1e-9} == exact


@pytest.mark.parametrize("how", ["plain", "gradients", "both"])
@pytest.mark.parametrize("split", ["even", "uneven"])
def test_ranks_of_a_tensor_keep_what_they_all_have(two_replicas: Reports, split: str, how: str) -> None:
    """Gradients and gathered weights of norms, bit for bit; ranks 0 and 1 have the same batch, and 2 and 3."""
    local, seen = (of(two_replicas, split, how, what) for what in ("local", "seen"))
    norms = [name for name in local[0] if "norm" in name]
    assert len(norms) == 6
    for first, second in ((0, 1), (2, 3)):
        assert equal(local[first], local[second], norms)
        assert equal(seen[first], seen[second], ["norm.weight"])
        assert equal(seen[first], seen[(first + 2) % 4], [*seen[first]]), "all shards of a tensor's part are decoded"


def test_gathered_weights_are_compressed(two_replicas: Reports) -> None:
    for split, norm in (("even", True), ("uneven", False)):
        exact, compressed = (of(two_replicas, split, how, "seen") for how in ("gradients", "both"))
        for own, rounded in zip(exact, compressed, strict=True):
            changed = {name for name in own if nmse(rounded[name], own[name]) > 0}
            assert changed == {"embedding.weight", "head.weight", *(["norm.weight"] if norm else [])}


def test_states_are_named_by_the_ranks_that_average(two_replicas: Reports) -> None:
    assert [report["tensor_parallel"]["scope"] for report in two_replicas] == ["group0", "group1", "group0", "group1"]


def test_experts_with_a_mesh_of_their_own(two_replicas: Reports) -> None:
    """A call for them and one for the rest compress both; without the first call, a line of rank 0 says so."""
    for rank, report in enumerate(two_replicas):
        result = report["expert_parallel"]
        plain = result["plain"]["gradients"]
        errors = {
            how: {name: nmse(gradient, plain[name]) for name, gradient in result[how]["gradients"].items()}
            for how in ("rest", "all")
        }
        for compressed in (errors["rest"]["dense.weight"], *errors["all"].values()):
            assert 0 < compressed < LIMITS["both"], errors
        assert errors["rest"]["experts.weight"] < 1e-9
        wanted = "'experts': sharded over other ranks"
        warned = {how: [wanted in line for line in result[how]["lines"]] for how in errors}
        assert warned == {"rest": [True] if rank == 0 else [], "all": []}


def test_replicas_are_not_compressed(two_replicas: Reports) -> None:
    for report in two_replicas:
        assert "neither tensor parallelism nor modules with a mesh" in report["tensor_refusals"]["replicas"]
