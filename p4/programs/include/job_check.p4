// Does a packet belong to a job of this switch, to its present incarnation, and to a worker of it?
control JobCheck(inout headers_t hdr, inout metadata_t meta) {
    // Slots of a job are `slot_base`.. of the registers. A result goes out at `quorum` contributions, to the group.
    // A leaf's is the root.
    action enter(bit<16> slot_base, bit<8> quorum, bit<16> multicast_group) {
        meta.job = JOB_ENTERED;
        meta.slot_index = slot_base + hdr.thc.slot[15:0];
        meta.quorum = quorum;
        meta.group = multicast_group;
    }

    // Packets of a leaf's root, in the root's epoch, are for the workers of the rack.
    action enter_from_root(bit<16> multicast_group) {
        meta.job = JOB_ENTERED;
        meta.group = multicast_group;
    }

    // Right job and epoch, but not its number of workers, or no slot for this type of message.
    action malformed() {
        meta.job = JOB_MALFORMED;
    }

    action refuse(bit<8> reason) {
        meta.job = JOB_REFUSED;
        meta.reason = reason;
    }

    table job {
        key = {
            hdr.thc.job_id: ternary @name("job_id");
            hdr.thc.epoch: ternary @name("epoch");
            hdr.thc.message_type: ternary @name("message_type");
            hdr.thc.num_workers: ternary @name("num_workers");
            hdr.thc.slot[15:0]: range @name("slot");
        }
        actions = { enter; enter_from_root; malformed; refuse; }
        const default_action = refuse(REASON_UNKNOWN_JOB);
        size = THC_JOB_ENTRIES;
    }

    // Packets by worker, from which the agent tells live workers from crashed ones.
    WORKER_COUNTER(worker_packets)

    action known(bit<32> worker_bit, bit<32> other_racks, port_t port) {
        COUNT_WORKER(worker_packets)
        meta.sender = SENDER_WORKER;
        meta.worker_bit = worker_bit;
        meta.other_racks = other_racks;
        meta.reply_port = port;
    }

    // A leaf's root, which calls the leaf worker `rack` and counts racks as workers.
    action root() {
        COUNT_WORKER(worker_packets)
        meta.sender = SENDER_ROOT;
    }

    // A packet counts as a worker's only if it comes from the address that the worker was configured with.
    table worker {
        key = {
            hdr.thc.job_id: exact @name("job_id");
            hdr.thc.worker_id: exact @name("worker_id");
            hdr.ipv4.src_ip: exact @name("src_ip");
            hdr.udp.src_port: exact @name("src_port");
        }
        actions = { known; root; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = worker_packets;
        size = THC_WORKER_ENTRIES;
    }

    apply {
        job.apply();
        // A HELLO says nothing about the life of the process that had this worker's place before. NORM, MAX_NORM to
        // STRAGGLER, ERROR.
        if (hdr.thc.message_type == THC_TYPE_NORM || hdr.thc.message_type[7:2] == 1 ||
            hdr.thc.message_type == THC_TYPE_ERROR) {
            worker.apply();
        }
    }
}
