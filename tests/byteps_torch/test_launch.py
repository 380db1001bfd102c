"""A BytePS script under another launcher than bpslaunch, such as torchrun. BytePS itself is not needed."""

from __future__ import annotations

import pytest

import byteps_thc.torch as bps
from byteps_thc._scheme.errors import ConfigurationError

LAUNCHED = {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1", "DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "1"}


@pytest.mark.parametrize("missing", [[*LAUNCHED], ["BYTEPS_LOCAL_RANK"], ["DMLC_NUM_WORKER"]])
@pytest.mark.parametrize("lazy", [True, False])
def test_what_bpslaunch_would_have_set_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: list[str], lazy: bool
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    for name in missing:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=f"^{', '.join(missing)} not set: start .* with bpslaunch, not"):
        bps.init(lazy)
