"""A user's script. mypy --strict refuses only lines that end with `# wrong`, says test_user_script.py."""

from typing import assert_type

from torch import nn

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, Session, ThcReducer, Timeouts
from byteps_thc.ddp import ThcState, compress
from byteps_thc.fsdp import FsdpCompression, compress_reduce_scatter, compress_replicas
from byteps_thc.torch import Compression


def settings() -> None:
    ServerCodes()
    config = ServerCodes(bits=3, granularity=20, p=1 / 32, seed=1, error_feedback=False, codes_per_packet="auto")
    assert_type(ServerCodes.paper(seed=1, value_bits=16), ServerCodes)
    assert_type(ServerCodes.uniform(2, p=1 / 64, rotation_block=1024), ServerCodes)
    assert_type(config.seed, int)
    CompressionPolicy(warmup_steps=3, stop_step=None, threads="auto")
    ServerCodes(bit=3)  # wrong
    ServerCodes(bits="4")  # wrong
    ServerCodes(bits=9)  # wrong
    ServerCodes(4)  # wrong
    ServerCodes(granularity="large")  # wrong
    ServerCodes.paper(sed=1)  # wrong
    ServerCodes.paper(bits=3)  # wrong
    ServerCodes.uniform(2, granularity=20)  # wrong
    CompressionPolicy(warmup=3)  # wrong
    CompressionPolicy(deadline_s="long")  # wrong
    config.seed = 2  # wrong


def networks() -> None:
    network = NetworkConfig(["10.0.0.1"], 2, quorum=0.9, run="a")
    assert_type(network.timeouts, Timeouts | None)
    Session(["10.0.0.1"], job=1, worker=0, workers=2, codes=ServerCodes(), quorum=1, key=bytes(32)).close()
    Compression.thc(servers=["10.0.0.1"], quorum=0.9, loss_tolerant=True, key="job.key")
    NetworkConfig(["10.0.0.1"], quorun=2)  # wrong
    NetworkConfig(["10.0.0.1"], quorum="0.9")  # wrong
    network.loss_tolerant = True  # wrong
    Session(["10.0.0.1"], 1, worker=0, workers=2, codes=ServerCodes())  # wrong
    Session(["10.0.0.1"], job=1, worker=0, workers=2, codes=ServerCodes(), slot=64)  # wrong
    Compression.thc(servers=["10.0.0.1"], quorun=2)  # wrong


def front_ends(model: nn.Module) -> None:
    network = NetworkConfig(["10.0.0.1"], job=2, timeouts=Timeouts(operation_s=5), codes=ServerCodes.paper())
    assert_type(compress(model), ThcState)
    compress(model, network=network, policy=CompressionPolicy(bypass_elements=0))
    compress(model, bits=4, down_bits=None, log_every=10)
    assert_type(compress_reduce_scatter(model, bits=2, seed=7), FsdpCompression)
    ThcReducer(network, worker=0, workers=2).close()
    Compression.thc(ServerCodes(), servers=["10.0.0.1"], job=3, policy=CompressionPolicy())
    compress(model, bit=4)  # wrong
    compress(model, 4)  # wrong
    compress(model, ServerCodes())  # wrong
    compress(model, granularity=30)  # wrong
    compress(model, policy=ServerCodes())  # wrong
    compress(model, network=["10.0.0.1"])  # wrong
    compress_reduce_scatter(model, seeds=7)  # wrong
    compress_replicas(model, model, dimension="replicate")  # wrong
    ThcReducer(None, worker="0")  # wrong
    ThcState(None, bit=4)  # wrong
    Compression.thc(CompressionPolicy())  # wrong
    Compression.thc(server=["10.0.0.1"])  # wrong
