// 32 blocks: each looks four codes up in its own copies of the table and adds their values to its own register of four
// 8-bit sums. A sum cannot carry into the next: the control plane refuses jobs with granularity * workers > 255.
#define BLOCK(i) \
    SET_VALUES(i, high, 31, 16) \
    SET_VALUES(i, low, 15, 0) \
    LOOKUP(i, high) \
    LOOKUP(i, low) \
    register<bit<32>, bit<16>>(THC_BLOCK_WORDS) sum_##i;

#define LOOK_UP(i) lookup_##i##_high.apply(); lookup_##i##_low.apply();
#define WRITE(i) sum_##i.write(meta.index, hdr.words.word_##i);
#define ADD(i) sum_##i.read(sum, meta.index); sum_##i.write(meta.index, sum + hdr.words.word_##i);
#define MAX(i) \
    sum_##i.read(sum, meta.index); \
    sum_##i.write(meta.index, sum < hdr.words.word_##i ? hdr.words.word_##i : sum);
#define READ(i) sum_##i.read(hdr.words.word_##i, meta.index);

control AggregationBlocks(inout headers_t hdr, in metadata_t meta) {
    FOR_BLOCKS(BLOCK)

    action write_all() {
        FOR_BLOCKS(WRITE)
    }

    action add_all() {
        bit<32> sum;
        FOR_BLOCKS(ADD)
    }

    action max_all() {
        bit<32> sum;
        FOR_BLOCKS(MAX)
    }

    action read_all() {
        FOR_BLOCKS(READ)
    }

    table aggregate {
        key = {
            meta.step: exact;
        }
        actions = { write_all; add_all; max_all; read_all; @defaultonly NoAction; }
        const entries = {
            STEP_WRITE: write_all();
            STEP_ADD: add_all();
            STEP_MAX: max_all();
            STEP_READ: read_all();
            STEP_READ_ONE: read_all();
        }
        const default_action = NoAction();
        SIZE_OF_CONST_ENTRIES(5)
    }

    apply {
        hdr.words.setValid();
        if (hdr.codes.isValid()) {
            FOR_BLOCKS(LOOK_UP)
        }
        aggregate.apply();
    }
}
