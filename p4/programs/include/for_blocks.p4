// Parts of aggregation blocks. FOR_BLOCKS repeats a macro for all: P4 has no loop over tables, registers and fields.
#ifndef THC_FOR_BLOCKS_P4_
#define THC_FOR_BLOCKS_P4_

#define FOR_BLOCKS(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) \
    DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) \
    DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23) \
    DO(24) DO(25) DO(26) DO(27) DO(28) DO(29) DO(30) DO(31)

// Two codes of a block, the `high` or the `low` ones, become a half of its word.
#define SET_VALUES(i, half, last, first) \
    action set_values_##i##_##half(bit<16> values) { \
        hdr.words.word_##i[last:first] = values; \
    }
#define LOOKUP(i, half) \
    table lookup_##i##_##half { \
        key = { hdr.codes.half##_##i: exact @name("codes"); } \
        actions = { set_values_##i##_##half; } \
        const default_action = set_values_##i##_##half(0); \
        size = THC_LOOKUP_ENTRIES; \
    }

#endif  // THC_FOR_BLOCKS_P4_
