// The last pass of a collected result: is it still the slot's, and who gets it?
control Result(inout headers_t hdr, inout metadata_t meta) {
    // The header is rewritten by Reply.
    action to_all() {
        meta.reply = REPLY_RESULT;
        meta.reason = REASON_COMPLETED;
        meta.delivery = DELIVER_GROUP;
        meta.is_result = 1;
    }

    action to_sender() {
        meta.reply = REPLY_RESULT;
        meta.reason = REASON_REPLAYED;
        meta.delivery = DELIVER_PORT;
    }

    // With a quorum below n, workers may have gone on while rows were read.
    action overwritten() {
        meta.reason = REASON_OVERWRITTEN;
    }

    table result {
        key = {
            meta.use: exact;
            hdr.thc.switch_verdict: exact;
        }
        actions = { to_all; to_sender; overwritten; }
        const entries = {
            (USE_JOINED, STEP_FINISH): to_all();
            (USE_JOINED, STEP_FINISH_ONE): to_sender();
        }
        const default_action = overwritten();
        SIZE_OF_CONST_ENTRIES(2)
    }

    apply {
        // Contributions are the quorum; all workers or not is all that `flags` says in a result.
        if (hdr.thc.contributions == hdr.thc.num_workers) {
            hdr.thc.flags = 0;
        } else {
            hdr.thc.flags = THC_FLAG_PARTIAL;
        }
        result.apply();
    }
}
