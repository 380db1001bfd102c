// Between a rack and its root: the job has another number of members, codes of another size and another epoch there. In
// egress, behind all passes, because nothing in ingress has to know.
control Leaf(inout headers_t hdr) {
    // The rack's sum becomes codes of 8 bits from worker `rack` of a job with a worker per rack.
    action up(bit<8> type_at_root, bit<32> root_epoch, bit<8> racks) {
        hdr.thc.message_type = type_at_root;
        hdr.thc.epoch = root_epoch;
        hdr.thc.num_workers = racks;
        hdr.thc.code_bits = 8;
        hdr.thc.contributions = 0;
    }

    // contributions: all workers in a result, 0 in STRAGGLER.
    action down(bit<32> leaf_epoch, bit<8> workers, bit<8> contributions) {
        hdr.thc.epoch = leaf_epoch;
        hdr.thc.num_workers = workers;
        hdr.thc.code_bits = 4;
        hdr.thc.contributions = contributions;
    }

    // ERROR `incomplete`: the root lacks racks.
    action down_error(bit<32> leaf_epoch, bit<8> workers, bit<32> racks) {
        down(leaf_epoch, workers, 0);
        hdr.error_payload.reason = THC_REASON_RACKS_INCOMPLETE;
        hdr.error_payload.job_value = racks;
    }

    // Entries by the packet's epoch: the switch's or the root's.
    table leaf {
        key = {
            hdr.thc.job_id: exact @name("job_id");
            hdr.thc.epoch: exact @name("epoch");
            hdr.thc.message_type: exact @name("message_type");
        }
        actions = { up; down; down_error; @defaultonly NoAction; }
        const default_action = NoAction();
        size = THC_LEAF_ENTRIES;
    }

    apply {
        leaf.apply();
    }
}
