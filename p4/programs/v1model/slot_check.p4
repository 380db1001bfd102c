// The state of slots: the RegisterActions of ../tna/slot_check.p4, as read - compute - write.
#define NOTE_ROUND note_round();
#define LOOK look();
#define START_OVER start_over();
#define JOIN join();

control SlotCheck(in headers_t hdr, inout metadata_t meta) {
    counter<bit<16>>(THC_SLOTS, CounterType.packets) slot_packets;

    register<bit<32>, bit<16>>(THC_SLOTS) highest_round;
    register<bit<64>, bit<16>>(THC_VERSIONS) slot_use;       // round ++ order
    register<bit<32>, bit<16>>(THC_VERSIONS) worker_bitmap;

    // Rounds are serial numbers, compared by the sign of their difference; zero is a slot that was never used.
    action note_round() {
        bit<32> highest;
        highest_round.read(highest, meta.slot_index);
        bool later = highest == 0 || (int<32>)(hdr.thc.round - highest) >= 0;
        meta.stale = later ? 1w0 : 1;
        highest_round.write(meta.slot_index, later ? hdr.thc.round : highest);
    }

    // An order is never zero, because it contains the first pass.
    action look() {
        bit<64> use;
        slot_use.read(use, hdr.thc.switch_state);
        meta.found_order = use[63:32] == hdr.thc.round ? use[31:0] : 0;
    }

    action start_over() {
        slot_use.write(hdr.thc.switch_state, hdr.thc.round ++ meta.order);
        worker_bitmap.write(hdr.thc.switch_state, meta.worker_bit);
    }

    action join() {
        worker_bitmap.read(meta.bitmap_before, hdr.thc.switch_state);
        worker_bitmap.write(hdr.thc.switch_state, meta.bitmap_before | meta.worker_bit);
    }

    apply {
#include "../include/slot_check_apply.p4"
    }
}
