// 32 blocks: each looks four codes up in its own copies of the table and adds their values to its own register of four
// 8-bit sums. A sum cannot carry into the next: the control plane refuses jobs with granularity * workers > 255.
// Stages: a stage has four stateful ALUs and holds the sums of four blocks, and at most eight lookups next to them. The
// two lookups of most blocks are in different stages, because two tables of one stage cannot write halves of one 32-bit
// container, and 16-bit containers do not suffice for all.
#define BLOCK(i, high_stage, low_stage, sum_stage) \
    SET_VALUES(i, high, 31, 16) \
    SET_VALUES(i, low, 15, 0) \
    @use_hash_action(0) @stage(high_stage) \
    LOOKUP(i, high) \
    @use_hash_action(0) @stage(low_stage) \
    LOOKUP(i, low) \
    Register<bit<32>, bit<16>>(THC_BLOCK_WORDS, 0) sum_##i; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sum_##i) write_to_##i = { \
        void apply(inout bit<32> sum) { \
            sum = hdr.words.word_##i; \
        } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sum_##i) add_to_##i = { \
        void apply(inout bit<32> sum) { \
            sum = sum + hdr.words.word_##i; \
        } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sum_##i) raise_##i = { \
        void apply(inout bit<32> sum) { \
            if (sum < hdr.words.word_##i) { \
                sum = hdr.words.word_##i; \
            } \
        } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sum_##i) read_from_##i = { \
        void apply(inout bit<32> sum, out bit<32> word) { \
            word = sum; \
        } \
    }; \
    action write_##i() { \
        write_to_##i.execute(meta.index); \
    } \
    action add_##i() { \
        add_to_##i.execute(meta.index); \
    } \
    action max_##i() { \
        raise_##i.execute(meta.index); \
    } \
    action read_##i() { \
        hdr.words.word_##i = read_from_##i.execute(meta.index); \
    } \
    @stage(sum_stage) \
    table aggregate_##i { \
        key = { meta.step: exact; } \
        actions = { write_##i; add_##i; max_##i; read_##i; @defaultonly NoAction; } \
        const entries = { \
            STEP_WRITE: write_##i(); \
            STEP_ADD: add_##i(); \
            STEP_MAX: max_##i(); \
            STEP_READ: read_##i(); \
            STEP_READ_ONE: read_##i(); \
        } \
        const default_action = NoAction(); \
        SIZE_OF_CONST_ENTRIES(5) \
    }

// A condition of its own for each lookup: one for all would keep the sums behind the last lookup.
#define LOOK_UP_AND_AGGREGATE(i) \
    if (hdr.codes.isValid()) { \
        lookup_##i##_high.apply(); \
    } \
    if (hdr.codes.isValid()) { \
        lookup_##i##_low.apply(); \
    } \
    aggregate_##i.apply();

control AggregationBlocks(inout headers_t hdr, in metadata_t meta) {
    // Stages 2 to 5 share their stateful ALUs with the state of slots, stage 11 with the tables behind the blocks.
    BLOCK(0, 1, 1, 2)
    BLOCK(1, 1, 1, 2)
    BLOCK(2, 1, 1, 2)
    BLOCK(3, 1, 2, 3)
    BLOCK(4, 1, 2, 3)
    BLOCK(5, 1, 2, 3)
    BLOCK(6, 2, 3, 4)
    BLOCK(7, 2, 3, 4)
    BLOCK(8, 2, 3, 4)
    BLOCK(9, 3, 4, 5)
    BLOCK(10, 3, 4, 5)
    BLOCK(11, 3, 4, 5)
    BLOCK(12, 4, 5, 6)
    BLOCK(13, 4, 5, 6)
    BLOCK(14, 4, 5, 6)
    BLOCK(15, 4, 5, 6)
    BLOCK(16, 3, 6, 7)
    BLOCK(17, 3, 6, 7)
    BLOCK(18, 6, 6, 7)
    BLOCK(19, 6, 6, 7)
    BLOCK(20, 7, 7, 8)
    BLOCK(21, 7, 7, 8)
    BLOCK(22, 6, 7, 8)
    BLOCK(23, 6, 7, 8)
    BLOCK(24, 8, 8, 9)
    BLOCK(25, 8, 8, 9)
    BLOCK(26, 7, 8, 9)
    BLOCK(27, 7, 8, 9)
    BLOCK(28, 9, 9, 10)
    BLOCK(29, 9, 9, 10)
    BLOCK(30, 8, 9, 10)
    BLOCK(31, 8, 9, 10)

    apply {
        hdr.words.setValid();
        FOR_BLOCKS(LOOK_UP_AND_AGGREGATE)
    }
}
