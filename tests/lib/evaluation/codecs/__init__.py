"""What THC is compared with: codecs of TopK, DGC, TernGrad, QSGD and SignSGD, and dense schemes.

Their payloads cannot be added: a server or every rank decodes all of them. hook.py averages DDP's buckets so.
"""

from evaluation.codecs.dense import Bf16, NoCompression
from evaluation.codecs.dgc import Dgc
from evaluation.codecs.qsgd import Qsgd
from evaluation.codecs.sign_sgd import SignSgd
from evaluation.codecs.tern_grad import TernGrad
from evaluation.codecs.top_k import TopK

__all__ = ["Bf16", "Dgc", "NoCompression", "Qsgd", "SignSgd", "TernGrad", "TopK"]
