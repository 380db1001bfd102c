"""The hash of tables and runs in HELLO. C++: byteps_thc/csrc/thc/lookup_table.cc."""


def fnv1a_64(data: bytes) -> int:
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % (1 << 64)
    return digest
