// The step after a pass.
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
        hdr.thc.switch_step = step;
        hdr.words.setInvalid();
        hdr.codes.setInvalid();
        meta.delivery = DELIVER_RECIRCULATE;
        meta.reason = reason;
    }

    action descend() {
        hdr.thc.switch_pass = hdr.thc.switch_pass - 1;
        meta.delivery = DELIVER_RECIRCULATE;
    }

    action collected(bit<8> step) {
        hdr.thc.switch_step = step;
        hdr.thc.switch_pass = 0;
        meta.delivery = DELIVER_RECIRCULATE;
    }

    // Its job was closed meanwhile (JobCheck has set the reason): its sums are forgotten with the job's slots.
    action abandon() {}

    table next {
        key = {
            hdr.thc.switch_step: ternary;
            hdr.thc.switch_pass: ternary;
            meta.missing: ternary;
            meta.job: ternary;
        }
        actions = { ascend; absorb; turn; descend; collected; abandon; }
        const entries = {
            (STEP_READ, 1, _, JOB_ENTERED): collected(STEP_FINISH);
            (STEP_READ_ONE, 1, _, JOB_ENTERED): collected(STEP_FINISH_ONE);
            (DESCENDING_STEPS, _, _, JOB_ENTERED): descend();
            (STEP_SKIP, THC_PASSES, _, JOB_ENTERED): turn(STEP_READ_ONE, REASON_NONE);
            (_, THC_PASSES, 0, JOB_ENTERED): turn(STEP_READ, REASON_NONE);
            (_, THC_PASSES, _, JOB_ENTERED): absorb();
            (_, _, _, JOB_ENTERED): ascend();
        }
        const default_action = abandon();
        SIZE_OF_CONST_ENTRIES(7)
    }

    apply {
        next.apply();
    }
}
