"""Networks of tests, where they can be made."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import pytest

from byteps_thc._base.errors import ConfigurationError

NetworkT = TypeVar("NetworkT", bound=AbstractContextManager[Any])


@contextmanager
def network_or_skip(make: Callable[[], NetworkT]) -> Iterator[NetworkT]:
    """Make a network and enter it. Skips the test, with the reason, where it cannot be made (ConfigurationError)."""
    try:
        network = make()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with network:
        yield network
