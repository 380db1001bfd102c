// The last pass of a collected result: is it still the slot's, and who gets it?
control Result(inout headers_t hdr, inout metadata_t meta) {
    // The header is rewritten by Reply.
    action to_all(bit<8> flags) {
        hdr.thc.flags = flags;
        meta.reply = REPLY_RESULT;
        meta.reason = REASON_COMPLETED;
        meta.delivery = DELIVER_GROUP;
        meta.is_result = 1;
    }

    action to_sender(bit<8> flags) {
        hdr.thc.flags = flags;
        meta.reply = REPLY_RESULT;
        meta.reason = REASON_REPLAYED;
        meta.delivery = DELIVER_PORT;
        meta.output_port = meta.reply_port;
    }

    // With a quorum below n, workers may have gone on while rows were read.
    action overwritten() {
        meta.reason = REASON_OVERWRITTEN;
    }

    AT_STAGE(9)
    table result {
        key = {
            meta.use: ternary;
            hdr.thc.switch_step: ternary;
            meta.absent: ternary;
        }
        actions = { to_all; to_sender; overwritten; }
        const entries = {
            (USE_JOINED, STEP_FINISH, 0): to_all(0);
            (USE_JOINED, STEP_FINISH, _): to_all(THC_FLAG_PARTIAL);
            (USE_JOINED, STEP_FINISH_ONE, 0): to_sender(0);
            (USE_JOINED, STEP_FINISH_ONE, _): to_sender(THC_FLAG_PARTIAL);
        }
        const default_action = overwritten();
        SIZE_OF_CONST_ENTRIES(4)
    }

    apply {
        result.apply();
    }
}
