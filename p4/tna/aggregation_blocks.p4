// 32 blocks: each looks four codes up in its own copies of the table and adds their values to its own register of four
// 8-bit lanes. A lane cannot carry into the next: the control plane refuses jobs with granularity * workers > 255.
// Stages: a stage has four stateful ALUs and holds the sums of four blocks. The two lookups of a block are in the two
// stages before it, because two tables of one stage cannot write halves of one container.
#define BLOCK(i, high_stage, low_stage, sum_stage) \
    action set_values_##i##_high(bit<16> values) { \
        hdr.words.word_##i[31:16] = values; \
    } \
    action set_values_##i##_low(bit<16> values) { \
        hdr.words.word_##i[15:0] = values; \
    } \
    @stage(high_stage) \
    table lookup_##i##_high { \
        key = { hdr.codes.high_##i: exact @name("codes"); } \
        actions = { set_values_##i##_high; } \
        const default_action = set_values_##i##_high(0); \
        size = THC_LOOKUP_ENTRIES; \
    } \
    @stage(low_stage) \
    table lookup_##i##_low { \
        key = { hdr.codes.low_##i: exact @name("codes"); } \
        actions = { set_values_##i##_low; } \
        const default_action = set_values_##i##_low(0); \
        size = THC_LOOKUP_ENTRIES; \
    } \
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

#define LOOK_UP(i) lookup_##i##_high.apply(); lookup_##i##_low.apply();
#define AGGREGATE(i) aggregate_##i.apply();

control AggregationBlocks(inout headers_t hdr, in metadata_t meta) {
    // Stages 2 to 4 share their stateful ALUs with the slot check.
    BLOCK(0, 0, 1, 2)
    BLOCK(1, 0, 1, 2)
    BLOCK(2, 0, 1, 2)
    BLOCK(3, 1, 2, 3)
    BLOCK(4, 3, 4, 5)
    BLOCK(5, 3, 4, 5)
    BLOCK(6, 3, 4, 5)
    BLOCK(7, 3, 4, 5)
    BLOCK(8, 4, 5, 6)
    BLOCK(9, 4, 5, 6)
    BLOCK(10, 4, 5, 6)
    BLOCK(11, 4, 5, 6)
    BLOCK(12, 5, 6, 7)
    BLOCK(13, 5, 6, 7)
    BLOCK(14, 5, 6, 7)
    BLOCK(15, 5, 6, 7)
    BLOCK(16, 6, 7, 8)
    BLOCK(17, 6, 7, 8)
    BLOCK(18, 6, 7, 8)
    BLOCK(19, 6, 7, 8)
    BLOCK(20, 7, 8, 9)
    BLOCK(21, 7, 8, 9)
    BLOCK(22, 7, 8, 9)
    BLOCK(23, 7, 8, 9)
    BLOCK(24, 8, 9, 10)
    BLOCK(25, 8, 9, 10)
    BLOCK(26, 8, 9, 10)
    BLOCK(27, 8, 9, 10)
    BLOCK(28, 9, 10, 11)
    BLOCK(29, 9, 10, 11)
    BLOCK(30, 9, 10, 11)
    BLOCK(31, 9, 10, 11)

    apply {
        hdr.words.setValid();
        if (hdr.codes.isValid()) {
            FOR_BLOCKS(LOOK_UP)
        }
        FOR_BLOCKS(AGGREGATE)
    }
}
