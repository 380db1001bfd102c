// A packet's effect on its slot: the truth table over the slot check's findings.
control Verdict(inout headers_t hdr, inout metadata_t meta) {
    // The workers of a version are counted from their bitmap: a counter next to it could drift. A stage can add two
    // fields once, so the sum of five numbers takes three stages.
    action subtract_0(bit<8> minus_ones) {
        meta.room = hdr.thc.contributions + minus_ones;
    }

    action subtract_1(bit<8> minus_ones) {
        meta.minus_ones_1 = minus_ones;
    }

    action subtract_2(bit<8> minus_ones) {
        meta.minus_ones_2 = minus_ones;
    }

    action subtract_3(bit<8> minus_ones) {
        meta.minus_ones_3 = minus_ones;
    }

    #define SET subtract_0
    table ones_0 {
        key = {
            meta.bitmap_before[7:0]: exact @name("workers");
        }
        actions = { subtract_0; }
        const entries = {
            #include "ones_entries.p4"
        }
        const default_action = subtract_0(0);
        SIZE_OF_CONST_ENTRIES(256)
    }
    #undef SET

    #define SET subtract_1
    table ones_1 {
        key = {
            meta.bitmap_before[15:8]: exact @name("workers");
        }
        actions = { subtract_1; }
        const entries = {
            #include "ones_entries.p4"
        }
        const default_action = subtract_1(0);
        SIZE_OF_CONST_ENTRIES(256)
    }
    #undef SET

    #define SET subtract_2
    table ones_2 {
        key = {
            meta.bitmap_before[23:16]: exact @name("workers");
        }
        actions = { subtract_2; }
        const entries = {
            #include "ones_entries.p4"
        }
        const default_action = subtract_2(0);
        SIZE_OF_CONST_ENTRIES(256)
    }
    #undef SET

    #define SET subtract_3
    table ones_3 {
        key = {
            meta.bitmap_before[31:24]: exact @name("workers");
        }
        actions = { subtract_3; }
        const entries = {
            #include "ones_entries.p4"
        }
        const default_action = subtract_3(0);
        SIZE_OF_CONST_ENTRIES(256)
    }
    #undef SET

    action add_pairs() {
        meta.room = meta.room + meta.minus_ones_1;
        meta.minus_ones_2 = meta.minus_ones_2 + meta.minus_ones_3;
    }

    action add_sums() {
        meta.room = meta.room + meta.minus_ones_2;
    }

    action straggler() {
        meta.reply = REPLY_STRAGGLER;
        meta.reason = REASON_STRAGGLER;
        meta.delivery = DELIVER_PORT;
        meta.output_port = meta.reply_port;
    }

    action order_mismatch() {
        meta.reply = REPLY_ERROR;
        meta.reason = REASON_ORDER_MISMATCH;
        meta.delivery = DELIVER_PORT;
        meta.output_port = meta.reply_port;
        meta.bitmap_before = 0;
    }

    action incomplete() {
        meta.reply = REPLY_ERROR;
        meta.reason = REASON_INCOMPLETE;
        meta.delivery = DELIVER_PORT;
        meta.output_port = meta.reply_port;
    }

    action duplicate() {
        meta.reason = REASON_DUPLICATE;
    }

    action begin(bit<8> step) {
        hdr.thc.switch_step = step;
        meta.delivery = DELIVER_RECIRCULATE;
    }

    // Closed: a quorum of workers is on its way through the passes, and one more would not be in the count.
    table verdict {
        key = {
            meta.use: ternary;
            meta.missing: ternary;
            meta.seen: ternary;
            meta.room: ternary;
            hdr.thc.flags: ternary;
            hdr.thc.message_type: ternary;
        }
        actions = { straggler; order_mismatch; incomplete; duplicate; begin; }
        const entries = {
            (USE_STRAGGLER, _, _, _, _, _): straggler();
            (USE_MISMATCH, _, _, _, _, _): order_mismatch();
            (USE_FRESH, _, _, _, _, _): begin(STEP_WRITE);
            (USE_JOINED, 0, _, _, _, _): begin(STEP_SKIP);
            // Closed by the quorum.
            (_, _, _, 0, THC_FLAG_RETRANSMIT, _): incomplete();
            (_, _, _, 0, _, _): duplicate();
            (_, _, _, 0x80 &&& 0x80, THC_FLAG_RETRANSMIT, _): incomplete();
            (_, _, _, 0x80 &&& 0x80, _, _): duplicate();
            (_, _, 0, _, _, THC_TYPE_CODES): begin(STEP_ADD);
            (_, _, 0, _, _, THC_TYPE_NORM): begin(STEP_MAX);
            // Counted before.
            (_, _, _, _, THC_FLAG_RETRANSMIT, _): incomplete();
        }
        const default_action = duplicate();
        SIZE_OF_CONST_ENTRIES(11)
    }

    apply {
        ones_0.apply();
        ones_1.apply();
        ones_2.apply();
        ones_3.apply();
        add_pairs();
        add_sums();
        verdict.apply();
    }
}
