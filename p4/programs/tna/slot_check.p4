// The state of slots. Each register has one stage, and a packet meets it once; nothing after them needs a stateful ALU.
// Stage 2: highest_round, 3: slot_use, 4: worker_bitmap, 5: finished (in ThcIngress; 11 on Tofino 2).
struct slot_use_t {
    bit<32> round;
    bit<32> order;
}

#define NOTE_ROUND meta.stale = note_round.execute(meta.slot_index);
#define LOOK \
    if (meta.stale == 0) { \
        meta.found_order = enter.execute(hdr.thc.switch_state); \
    } else { \
        meta.found_order = look.execute(hdr.thc.switch_state); \
    }
#define START_OVER first_worker.execute(hdr.thc.switch_state);
#define JOIN meta.bitmap_before = join_workers.execute(hdr.thc.switch_state);

control SlotCheck(in headers_t hdr, inout metadata_t meta) {
    Counter<bit<32>, bit<16>>(THC_SLOTS, CounterType_t.PACKETS) slot_packets;

    // Rounds by slot: serial numbers, compared by the sign of their difference; zero is a slot that was never used.
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

    // Uses by version.
    Register<slot_use_t, bit<16>>(THC_VERSIONS, {0, 0}) slot_use;

    // An order is never zero, because it contains the first pass.
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

    apply {
#include "../include/slot_check_apply.p4"
    }
}
