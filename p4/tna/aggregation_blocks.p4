// 32 blocks: each looks four codes up in its own copies of the table and adds their values to its own register of four
// 8-bit lanes. A lane cannot carry into the next: the control plane refuses jobs with granularity * workers > 255.
// Stages: a stage has four stateful ALUs, so a stage holds the sums of four blocks, and the stage before it their lookups.
#define BLOCK(i, lookup_stage, sum_stage) \
    action set_values_##i##_high(bit<16> values) { \
        hdr.words.word_##i[31:16] = values; \
    } \
    action set_values_##i##_low(bit<16> values) { \
        hdr.words.word_##i[15:0] = values; \
    } \
    @stage(lookup_stage) \
    table lookup_##i##_high { \
        key = { hdr.codes.high_##i: exact @name("codes"); } \
        actions = { set_values_##i##_high; } \
        const default_action = set_values_##i##_high(0); \
        size = THC_LOOKUP_ENTRIES; \
    } \
    @stage(lookup_stage) \
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
    }

#define LOOK_UP(i) lookup_##i##_high.apply(); lookup_##i##_low.apply();
#define AGGREGATE(i) aggregate_##i.apply();

control AggregationBlocks(inout headers_t hdr, in metadata_t meta) {
    // Stages 2 to 4 share their stateful ALUs with the slot check.
    BLOCK(0, 1, 2)
    BLOCK(1, 1, 2)
    BLOCK(2, 1, 2)
    BLOCK(3, 2, 3)
    BLOCK(4, 4, 5)
    BLOCK(5, 4, 5)
    BLOCK(6, 4, 5)
    BLOCK(7, 4, 5)
    BLOCK(8, 5, 6)
    BLOCK(9, 5, 6)
    BLOCK(10, 5, 6)
    BLOCK(11, 5, 6)
    BLOCK(12, 6, 7)
    BLOCK(13, 6, 7)
    BLOCK(14, 6, 7)
    BLOCK(15, 6, 7)
    BLOCK(16, 7, 8)
    BLOCK(17, 7, 8)
    BLOCK(18, 7, 8)
    BLOCK(19, 7, 8)
    BLOCK(20, 8, 9)
    BLOCK(21, 8, 9)
    BLOCK(22, 8, 9)
    BLOCK(23, 8, 9)
    BLOCK(24, 9, 10)
    BLOCK(25, 9, 10)
    BLOCK(26, 9, 10)
    BLOCK(27, 9, 10)
    BLOCK(28, 10, 11)
    BLOCK(29, 10, 11)
    BLOCK(30, 10, 11)
    BLOCK(31, 10, 11)

    apply {
        hdr.words.setValid();
        if (hdr.codes.isValid()) {
            FOR_BLOCKS(LOOK_UP)
        }
        FOR_BLOCKS(AGGREGATE)
    }
}
