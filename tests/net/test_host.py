"""Which processes share a node."""

import subprocess
import sys

import pytest

from byteps_thc._net.run import host_of, node_identity

PROGRAM = "from byteps_thc._net.run import node_identity; print(node_identity())"


def identity_in(*prefix: str) -> str:
    command = [*prefix, sys.executable, "-P", "-c", PROGRAM]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if prefix and "unshare failed" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_processes_of_a_network_are_one_node() -> None:
    assert identity_in() == node_identity()


def test_a_container_with_a_network_of_its_own_is_a_node_of_the_same_host() -> None:
    other = identity_in("unshare", "--net")
    assert other != node_identity()
    assert host_of(other) == host_of(node_identity())
