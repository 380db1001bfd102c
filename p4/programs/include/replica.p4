// Every worker's copy of a result gets its own addresses.
control Replica(inout headers_t hdr, inout metadata_t meta, in bit<16> egress_rid) {
    action to_worker(bit<48> mac, bit<32> ip, bit<16> port, bit<8> worker_id) {
        hdr.ethernet.dst_mac = mac;
        hdr.ipv4.dst_ip = ip;
        hdr.udp.dst_port = port;
        hdr.thc.worker_id = worker_id;
        meta.delivery = DELIVER_PORT;
    }

    action unknown() {
        meta.delivery = DELIVER_NOT;
    }

    table replica {
        key = {
            egress_rid: exact @name("egress_rid");
        }
        actions = { to_worker; unknown; }
        const default_action = unknown();
        size = THC_WORKER_ENTRIES;
    }

    apply {
        replica.apply();
    }
}
