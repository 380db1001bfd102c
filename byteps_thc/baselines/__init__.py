"""What THC is compared with, behind the same front ends: compress(ddp, TopK(ratio=0.01)).

docs/plugins.md has a table of what works where.

Uniform THC, also compared with in the paper, is ThcConfig.uniform().
"""

import byteps_thc.needs_torch  # noqa: F401
from byteps_thc.baselines.compare import Comparison, compare
from byteps_thc.baselines.config import BaselineConfig
from byteps_thc.baselines.dense import Bf16, Fp16, NoCompression
from byteps_thc.baselines.dgc import Dgc
from byteps_thc.baselines.engine import baseline_engine
from byteps_thc.baselines.qsgd import Qsgd
from byteps_thc.baselines.sign_sgd import SignSgd
from byteps_thc.baselines.tern_grad import TernGrad
from byteps_thc.baselines.top_k import TopK

__all__ = [
    "BaselineConfig",
    "Bf16",
    "Comparison",
    "Dgc",
    "Fp16",
    "NoCompression",
    "Qsgd",
    "SignSgd",
    "TernGrad",
    "TopK",
    "baseline_engine",
    "compare",
]
