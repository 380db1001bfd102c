"""Compile-time limits of the P4 programs; p4/programs/include/thc_config.p4 explains them, a test compares both."""

from byteps_thc._base.wire.layout import HEADER_BYTES, MAX_WORKERS_SWITCH, SWITCH_CODES_PER_PACKET

CODE_BITS = 4
VALUE_BITS = 8
CODES_PER_PACKET = SWITCH_CODES_PER_PACKET
MAX_WORKERS = MAX_WORKERS_SWITCH
#: Aggregation blocks, each four sums wide: 128 codes in a pass.
BLOCKS = 32
PASSES = 8  # workers pad CODES to whole packets, so that all take the same
#: Largest datagram: the result of a full packet.
RESULT_BYTES = HEADER_BYTES + CODES_PER_PACKET * VALUE_BITS // 8
#: 32-bit words of one block's register in one pipe, for its share of the 8 rows.
REGISTER_WORDS = 32768
VERSIONS_PER_SLOT = 2
#: `order` of a slot has 12 bits for the chunk.
MAX_CHUNKS = 4096
PIPE_COUNTS = (1, 2, 4)
MAX_PORT = 511
MAX_ALL_WORKERS = 1024
MAC_ENTRIES = 4096
#: One entry is the switch's own address, and every worker may be a station.
MAX_STATIONS = MAC_ENTRIES - MAX_ALL_WORKERS - 1
MAX_ROUTES = 512
JOB_ENTRIES = 512
#: Superseded epochs whose packets get STALE_EPOCH.
REMEMBERED_EPOCHS = 4
#: A Tofino matches ranges by digits of 4 bits: the 16-bit range of the CODES slots takes up to 7 rows of TCAM, and the
#: range of NORM, which begins at 0, up to 4. Entries for any slot take one: malformed messages, and each epoch.
JOB_ROWS = 7 + 4 + 1 + REMEMBERED_EPOCHS
MAX_JOBS = JOB_ENTRIES // JOB_ROWS
#: A leaf's root sends AGGREGATE, MAX_NORM, STRAGGLER and ERROR, in any slot.
ROOT_ROWS = 4
#: Multicast groups of leaves' jobs towards their roots (IS_TO_ROOT in metadata.p4).
ROOT_GROUPS = range(1 << 15 | 1, (1 << 15 | 1) + MAX_JOBS)
#: The multicast group of frames to unknown stations.
FLOOD_GROUP = 0xFFFF


def max_slots(pipes: int) -> int:
    """Return the number of slots in the aggregation registers: more pipes share the 8 rows of every slot."""
    return REGISTER_WORDS * pipes // PASSES // VERSIONS_PER_SLOT
