"""The installed BytePS, imported on first use, so that this package imports without it."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

from byteps_thc._scheme.errors import ConfigurationError


@functools.cache
def byteps_operations() -> ModuleType:
    """Return the module byteps.torch.ops; ConfigurationError when BytePS is not installed."""
    try:
        with warnings.catch_warnings():
            # BytePS 0.2.5 imports distutils, which warns.
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("byteps.torch.ops")
    except ImportError as error:
        raise ConfigurationError(
            f"BytePS does not import ({error}): build it into this Python with 'make byteps'"
        ) from (error)
