"""Checksums of packets, written anew from docs/contributors/protocol.md: for vectors and tests."""

HEADER_BYTES = 32
CHECKSUM_BYTES = 4
#: Offset, and bit in it, of the flag.
FLAGS, CHECKSUM_FLAG = 2, 1 << 5


def crc32c(data: bytes, register: int = 0xFFFFFFFF) -> int:
    """The register of CRC-32C (RFC 3720) behind the data, without the inversion at the end."""
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


def checksum(datagram: bytes) -> bytes:
    """The last 4 bytes of the header."""
    payload = datagram[HEADER_BYTES:] + bytes(-len(datagram[HEADER_BYTES:]) % 8)
    words = [payload[at : at + 8] for at in range(0, len(payload), 8)]
    registers = [crc32c(b"".join(words[lane::4])).to_bytes(4, "little") for lane in range(4)]
    lanes = b"".join(register.ljust(9, b"\0") for register in registers)[:32]
    header = datagram[: HEADER_BYTES - CHECKSUM_BYTES] + bytes(CHECKSUM_BYTES)
    return (crc32c(lanes + header) ^ 0xFFFFFFFF).to_bytes(4, "big")
