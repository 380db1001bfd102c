"""One rank of test_diloco.py: DiLoCo with ThcReducer as its outer average."""

from torch import Tensor
from trainings.outer_steps import train
from trainings.replicas import Replicas, replica_of

from byteps_thc import ThcReducer
from thc_lab.ranks import joined_rank


def main() -> None:
    with joined_rank() as rank:
        settings = rank.settings
        inner, outer = settings["inner"], settings["outer"]
        own = replica_of("GPT", rank.ranks, inner * outer, "AdamW", settings["seed"], rank.rank)
        with ThcReducer(bits=settings["bits"]) as reducer:

            def average(gradients: Tensor) -> Tensor:
                reducer.all_reduce({"outer": gradients[0]})
                return gradients[0]

            trained = train(Replicas([own]), average, inner, outer)
        rank.report(trained.parameters)


main()
