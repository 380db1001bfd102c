// Is a packet for the aggregator, and for which part: its slots, its agent behind the CPU port, its ARP?
control Service(inout headers_t hdr, inout metadata_t meta) {
    // Replies leave with this source, whatever MAC address the request was sent to.
    action accept(bit<48> mac) {
        hdr.ethernet.dst_mac = mac;
    }

    table service {
        key = {
            hdr.ipv4.dst_ip: exact @name("dst_ip");
            hdr.udp.dst_port: exact @name("dst_port");
        }
        actions = { accept; @defaultonly NoAction; }
        const default_action = NoAction();
        size = THC_SERVICE_ENTRIES;
    }

    action slots() {
        meta.service = SERVICE_SLOTS;
    }

    action to_cpu(port_t port) {
        meta.service = SERVICE_CPU;
        meta.output_port = port;
    }

    // The control plane sets the CPU port as the default action's parameter. A root's results for a leaf pass through.
    // Its refusals end something, and are for the agent.
    table message {
        key = {
            hdr.thc.message_type: ternary @name("message_type");
            hdr.error_payload.reason: ternary @name("reason");
        }
        actions = { slots; to_cpu; }
        const entries = {
            (THC_TYPE_NORM, _): slots();
            (THC_TYPE_CODES, _): slots();
            (THC_TYPE_AGGREGATE, _): slots();
            (THC_TYPE_MAX_NORM, _): slots();
            (THC_TYPE_STRAGGLER, _): slots();
            (THC_TYPE_ERROR, THC_REASON_INCOMPLETE): slots();
        }
        default_action = to_cpu(0);
        SIZE_OF_CONST_ENTRIES(6)
    }

    action reply(bit<48> mac) {
        meta.service = SERVICE_ARP;
        hdr.ethernet.dst_mac = hdr.arp.sender_mac;
        hdr.ethernet.src_mac = mac;
        hdr.arp.opcode = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.sender_mac = mac;
        bit<32> asked = hdr.arp.target_ip;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_ip = asked;
    }

    table arp_responder {
        key = {
            hdr.arp.target_ip: exact @name("target_ip");
        }
        actions = { reply; @defaultonly NoAction; }
        const default_action = NoAction();
        size = THC_SERVICE_ENTRIES;
    }

    apply {
        if (hdr.udp.isValid()) {
            if (service.apply().hit) {
                if (hdr.thc.isValid()) {
                    message.apply();
                } else {
                    meta.service = SERVICE_SLOTS;  // a shape that is no message of ours: malformed
                }
            }
        } else if (hdr.arp.isValid() && hdr.arp.opcode == ARP_REQUEST) {
            arp_responder.apply();
        }
    }
}
