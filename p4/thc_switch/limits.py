"""What the P4 programs are compiled for; p4/programs/include/thc_config.p4 says why, a test keeps the two equal."""

from __future__ import annotations

from byteps_thc._scheme.wire.layout import MAX_WORKERS_SWITCH, SWITCH_CODES_PER_PACKET, Header

CODE_BITS = 4
VALUE_BITS = 8
CODES_PER_PACKET = SWITCH_CODES_PER_PACKET
MAX_WORKERS = MAX_WORKERS_SWITCH
#: Aggregation blocks, each four sums wide: 128 codes in a pass.
BLOCKS = 32
PASSES = 8  # workers pad CODES to whole packets, so that all take the same
#: Largest datagram: the result of a full packet.
RESULT_BYTES = Header.SIZE_BYTES + CODES_PER_PACKET * VALUE_BITS // 8
#: 32-bit words of one block's register, which one pipe has for its share of the 8 rows.
REGISTER_WORDS = 32768
#: Each slot has two versions.
VERSIONS_PER_SLOT = 2
#: `order` of a slot has 12 bits for the chunk.
MAX_CHUNKS = 4096
PIPE_COUNTS = (1, 2, 4)
MAX_PORT = 511
#: Entries of the tables.
MAX_ALL_WORKERS = 1024
MAC_ENTRIES = 4096
#: One entry is the switch's own address, and every worker may be a station.
MAX_STATIONS = MAC_ENTRIES - MAX_ALL_WORKERS - 1
MAX_ROUTES = 512
JOB_ENTRIES = 512
#: Superseded epochs whose packets are told so.
REMEMBERED_EPOCHS = 4
#: A Tofino matches ranges by digits of 4 bits: the 16-bit range of the CODES slots takes up to 7 rows of TCAM, that of
#: NORM, which begins at 0, up to 4. What matches any slot takes one: malformed messages, and each epoch remembered.
JOB_ROWS = 7 + 4 + 1 + REMEMBERED_EPOCHS
MAX_JOBS = JOB_ENTRIES // JOB_ROWS
#: What the root of a leaf sends: AGGREGATE, MAX_NORM, STRAGGLER and ERROR, in any slot.
ROOT_ROWS = 4
#: Multicast groups of leaves' jobs towards their roots (IS_TO_ROOT in metadata.p4).
ROOT_GROUPS = range(1 << 15 | 1, (1 << 15 | 1) + MAX_JOBS)


def max_slots(pipes: int) -> int:
    """Return how many slots the aggregation registers hold: more pipes share the 8 rows of every slot."""
    return REGISTER_WORDS * pipes // PASSES // VERSIONS_PER_SLOT
