"""Turning off what interfaces leave to hardware, as `ethtool -K DEV rx off tx off tso off gso off gro off` does.

Without this a frame over a veth pair may carry a checksum that is only begun, and several packets may come as one: a
switch would forward both as they are, and the receiver drop them. Do it at both ends of a pair; what matters for
checksums is the sender's.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

SIOCETHTOOL = 0x8946
# Commands of linux/ethtool.h that set one feature, in an order in which none depends on a later one.
SET_COMMANDS = {
    "tso": 0x1F,
    "gso": 0x24,
    "gro": 0x2C,
    "rx checksum": 0x15,
    "tx checksum": 0x17,
}


def disable_offloads(interface: str) -> None:
    """Turn off segmentation, receive merging and checksum offloads. OSError: no such interface, or no CAP_NET_ADMIN."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in SET_COMMANDS.values():
            value = array.array("B", struct.pack("II", command, 0))  # struct ethtool_value
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])  # struct ifreq
            fcntl.ioctl(control, SIOCETHTOOL, request)
