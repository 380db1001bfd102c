// What comes after a pass.
#define COLLECTED(pass) \
    (STEP_READ, pass * 0x11, _): collected(STEP_FINISH); \
    (STEP_READ_ONE, pass * 0x11, _): collected(STEP_FINISH_ONE);

control NextPass(inout headers_t hdr, inout metadata_t meta) {
    // The payload of an ascending pass ends here.
    action ascend() {
        hdr.thc.switch_pass = hdr.thc.switch_pass + 1;
        hdr.words.setInvalid();
        hdr.codes.setInvalid();
        meta.delivery = DELIVER_RECIRCULATE;
    }

    action absorb() {
        meta.reason = REASON_ABSORBED;
    }

    // Collect now, from the last row to the first, because a deparser can only put a row in front of the others.
    action turn(bit<8> step, bit<8> reason) {
        hdr.thc.switch_verdict = step;
        hdr.words.setInvalid();
        hdr.codes.setInvalid();
        meta.delivery = DELIVER_RECIRCULATE;
        meta.reason = reason;
    }

    action descend() {
        hdr.thc.switch_pass = hdr.thc.switch_pass - 1;
        meta.delivery = DELIVER_RECIRCULATE;
    }

    // Keeps the first pass, which stands for the count in metadata_t.order.
    action collected(bit<8> step) {
        hdr.thc.switch_verdict = step;
        hdr.thc.switch_pass = hdr.thc.switch_pass & 0xf0;
        meta.delivery = DELIVER_RECIRCULATE;
    }

    table next {
        key = {
            hdr.thc.switch_verdict: ternary;
            hdr.thc.switch_pass: ternary;
            meta.missing: ternary;
        }
        actions = { ascend; absorb; turn; descend; collected; }
        const entries = {
            COLLECTED(1)
            COLLECTED(2)
            COLLECTED(3)
            COLLECTED(4)
            COLLECTED(5)
            COLLECTED(6)
            COLLECTED(7)
            COLLECTED(8)
            (STEP_READ &&& 0xfc, _, _): descend();
            (STEP_SKIP, 8 &&& 0x0f, _): turn(STEP_READ_ONE, REASON_NONE);
            (_, 8 &&& 0x0f, 0): turn(STEP_READ, REASON_NONE);
            (_, 8 &&& 0x0f, _): absorb();
        }
        const default_action = ascend();
        SIZE_OF_CONST_ENTRIES(20)
    }

    apply {
        next.apply();
    }
}
