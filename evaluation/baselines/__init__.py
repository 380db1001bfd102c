"""THC's rivals: codecs of TopK, DGC, TernGrad, QSGD and SignSGD, and dense schemes.

Their payloads cannot be added: a server or every rank decodes all payloads. hook.py averages DDP's buckets so.
"""

from baselines.dense import Bf16, NoCompression
from baselines.dgc import Dgc
from baselines.qsgd import Qsgd
from baselines.sign_sgd import SignSgd
from baselines.tern_grad import TernGrad
from baselines.top_k import TopK

__all__ = ["Bf16", "Dgc", "NoCompression", "Qsgd", "SignSgd", "TernGrad", "TopK"]
