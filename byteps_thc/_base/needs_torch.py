"""Imported first by modules that need PyTorch: the error names the package to install."""

from byteps_thc._base.built import explain

try:
    import torch  # noqa: F401
except ImportError as error:
    raise explain(error) from error

import byteps_thc._base.torch_private  # noqa: F401
