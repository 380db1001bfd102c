"""Imported first by modules that need PyTorch: the error says what to install."""

from byteps_thc._scheme.built import explain

try:
    import torch  # noqa: F401
except ImportError as error:
    raise explain(error) from error

import byteps_thc._scheme.torch_private  # noqa: F401
