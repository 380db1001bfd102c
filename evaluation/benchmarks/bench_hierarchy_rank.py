"""One rank of bench_hierarchy.py: flat schemes over all ranks, and THC over a mesh of nodes, in turn.

As bench_ddp_rank.py, whose programs it runs; the ranks of a node are on one host of the shaped network.
"""

from bench_ddp_rank import Thc, backward_of, make_model
from shaped_ddp.steps import Bf16, Prepare, Scheme, rank_parser, run
from torch.distributed.device_mesh import init_device_mesh

from byteps_thc.ddp import ThcState


def make_schemes(prepare: Prepare, nodes: int, ranks: int) -> dict[str, Scheme]:
    """The compared schemes, by name."""
    mesh = init_device_mesh("cpu", (nodes, ranks // nodes), mesh_dim_names=("between", "within"))
    return {
        "bf16": Bf16(make_model(), prepare),
        "flat": Thc(prepare, ThcState(levels="flat")),
        "mesh": Thc(prepare, ThcState(levels=(mesh, "between"))),
    }


def main() -> None:
    parser = rank_parser(__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    args = parser.parse_args()
    run(args, lambda: make_schemes(backward_of(args.rank), args.nodes, args.ranks))


if __name__ == "__main__":
    main()
