// The last pass of a collected result: is it still the slot's, and for one worker or all?
control Result(inout headers_t hdr, inout metadata_t meta) {
    // The header is rewritten by Reply.
    action to_group(bit<8> flags, bit<8> reason) {
        hdr.thc.flags = flags;
        meta.reply = REPLY_RESULT;
        meta.reason = reason;
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

    // Workers may have begun the next round while rows were read, if the quorum is below n.
    action overwritten() {
        meta.reason = REASON_OVERWRITTEN;
    }

    AT_STAGE(9)
    table result {
        key = {
            meta.use: ternary;
            hdr.thc.switch_step: ternary;
            meta.absent: ternary;
            IS_TO_ROOT(meta.group): ternary @name("is_to_root");
        }
        actions = { to_group; to_sender; overwritten; }
        const entries = {
            // A leaf keeps nothing about the root's results: a worker that lacks one makes it ask the root again.
            (USE_JOINED, STEP_FINISH, _, 1): to_group(0, REASON_COMPLETED);
            (USE_JOINED, STEP_FINISH_ONE, _, 1): to_group(THC_FLAG_RETRANSMIT, REASON_REPLAYED);
            (USE_JOINED, STEP_FINISH, 0, _): to_group(0, REASON_COMPLETED);
            (USE_JOINED, STEP_FINISH, _, _): to_group(THC_FLAG_PARTIAL, REASON_COMPLETED);
            (USE_JOINED, STEP_FINISH_ONE, 0, _): to_sender(0);
            (USE_JOINED, STEP_FINISH_ONE, _, _): to_sender(THC_FLAG_PARTIAL);
        }
        const default_action = overwritten();
        SIZE_OF_CONST_ENTRIES(6)
    }

    apply {
        result.apply();
    }
}
