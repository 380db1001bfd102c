// The state of slots. Each register has one stage, and a packet meets it once; nothing after them needs a stateful ALU.
// Stage 2: highest_round, 3: slot_use, 4: worker_bitmap and finished.
struct slot_use_t {
    bit<32> round;
    bit<32> order;
}

struct finished_t {
    bit<32> round;
    bit<32> count;
}

control SlotCheck(in headers_t hdr, inout metadata_t meta) {
    Counter<bit<32>, bit<16>>(THC_SLOTS, CounterType_t.PACKETS) slot_packets;

    // By slot: rounds are serial numbers, compared by the sign of their difference; zero is a slot that was never used.
    Register<bit<32>, bit<16>>(THC_SLOTS, 0) highest_round;

    RegisterAction<bit<32>, bit<16>, bit<1>>(highest_round) note_round = {
        void apply(inout bit<32> highest, out bit<1> stale) {
            stale = 0;
            if (highest == 0 || (int<32>)(hdr.thc.round - highest) >= 0) {
                highest = hdr.thc.round;
            } else {
                stale = 1;
            }
        }
    };

    // By version.
    Register<slot_use_t, bit<16>>(THC_VERSIONS, {0, 0}) slot_use;

    // An order is never zero: the first pass is a part of it.
    RegisterAction<slot_use_t, bit<16>, bit<32>>(slot_use) enter = {
        void apply(inout slot_use_t use, out bit<32> found_order) {
            found_order = 0;
            if (use.round == hdr.thc.round && use.order != 0) {
                found_order = use.order;
            } else {
                use.round = hdr.thc.round;
                use.order = meta.order;
            }
        }
    };

    RegisterAction<slot_use_t, bit<16>, bit<32>>(slot_use) look = {
        void apply(inout slot_use_t use, out bit<32> found_order) {
            found_order = 0;
            if (use.round == hdr.thc.round) {
                found_order = use.order;
            }
        }
    };

    Register<bit<32>, bit<16>>(THC_VERSIONS, 0) worker_bitmap;

    RegisterAction<bit<32>, bit<16>, bit<32>>(worker_bitmap) first_worker = {
        void apply(inout bit<32> workers) {
            workers = meta.worker_bit;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(worker_bitmap) join_workers = {
        void apply(inout bit<32> workers, out bit<32> before) {
            before = workers;
            workers = workers | meta.worker_bit;
        }
    };

    // Contributions that are through all their passes. A packet that is lost between two passes never completes a slot: the
    // workers' deadline says so, instead of a sum that lacks rows.
    Register<finished_t, bit<16>>(THC_VERSIONS, {0, 0}) finished;

    RegisterAction<finished_t, bit<16>, bit<8>>(finished) begin_count = {
        void apply(inout finished_t value) {
            value.round = hdr.thc.round;
            value.count = 0;
        }
    };

    RegisterAction<finished_t, bit<16>, bit<8>>(finished) read_count = {
        void apply(inout finished_t value, out bit<8> count) {
            count = value.count[7:0];
        }
    };

    RegisterAction<finished_t, bit<16>, bit<8>>(finished) count_one = {
        void apply(inout finished_t value, out bit<8> count) {
            count = 0;
            if (value.round == hdr.thc.round) {
                value.count = value.count + 1;
                count = value.count[7:0];
            }
        }
    };

    apply {
        if (meta.work == WORK_PASS) {
            // In the last pass of a contribution.
            if (hdr.thc.switch_pass[3:0] == THC_PASSES && meta.step[3:2] == 2 && meta.step[1:0] != 3) {
                meta.finished = count_one.execute(hdr.thc.switch_state);
            }
        } else if (meta.work == WORK_CHECK || meta.work == WORK_FINISH) {
            if (meta.work == WORK_CHECK) {
                slot_packets.count(meta.slot_index);
                meta.stale = note_round.execute(meta.slot_index);
            } else {
                meta.stale = 1;  // a result only looks at its version
            }
            if (meta.stale == 0) {
                meta.found_order = enter.execute(hdr.thc.switch_state);
            } else {
                meta.found_order = look.execute(hdr.thc.switch_state);
            }
            if (meta.found_order == 0) {
                if (meta.stale == 0) {
                    meta.use = USE_FRESH;
                    first_worker.execute(hdr.thc.switch_state);
                    begin_count.execute(hdr.thc.switch_state);
                } else {
                    meta.use = USE_STRAGGLER;
                }
            } else if (meta.found_order == meta.order) {
                meta.use = USE_JOINED;
                if (meta.work == WORK_CHECK) {
                    meta.bitmap_before = join_workers.execute(hdr.thc.switch_state);
                    meta.finished = read_count.execute(hdr.thc.switch_state);
                }
            } else {
                meta.use = USE_MISMATCH;
            }
        }
        meta.seen = meta.bitmap_before & meta.worker_bit;
        meta.missing = hdr.thc.contributions - meta.finished;
    }
}
