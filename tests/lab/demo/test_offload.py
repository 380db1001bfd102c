"""Offloads of cables between namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from thc_lab.namespaces import Cable, CableEnd, Namespaces, command_inside, connect, disable_offloads

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@needs_root
@pytest.mark.skipif(shutil.which("ethtool") is None, reason="needs ethtool")
def test_offloads_of_a_cable_are_off() -> None:
    with Namespaces() as namespaces:
        first, second = namespaces.add("first"), namespaces.add("second")
        ends = CableEnd(first, "left", "02:00:00:00:00:01"), CableEnd(second, "right", "02:00:00:00:00:02")
        connect(Cable(*ends))
        for namespace, interface in ((first, "left"), (second, "right")):
            command = [*command_inside(namespace), "ethtool", "-k", interface]
            features = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
            for feature in ("tx-checksumming", "tx-tcp-segmentation", "generic-segmentation", "generic-receive"):
                line = next(line for line in features.splitlines() if line.strip().startswith(feature))
                assert ": off" in line


def test_an_interface_that_is_not_there() -> None:
    with pytest.raises(OSError):
        disable_offloads("thc-not-there")
