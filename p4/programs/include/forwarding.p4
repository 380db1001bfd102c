// A plain switch for all packets that are not for the aggregator: bridges to known stations, floods to others, and
// routes packets for its own MAC address.
control Forwarding(inout headers_t hdr, inout metadata_t meta) {
    action forward(port_t port) {
        meta.delivery = DELIVER_PORT;
        meta.output_port = port;
    }

    action to_router() {
        meta.reason = REASON_UNROUTABLE;  // unless ipv4_route knows better
    }

    action flood(bit<16> multicast_group) {
        meta.delivery = DELIVER_GROUP;
        meta.group = multicast_group;
    }

    // The control plane sets the group of all ports as the default action's parameter; group 0 has no members.
    AT_STAGE(5)
    table mac_forward {
        key = {
            hdr.ethernet.dst_mac: exact @name("dst_mac");
        }
        actions = { forward; to_router; flood; }
        default_action = flood(0);
        size = THC_MAC_ENTRIES;
    }

    // RFC 1141: the checksum rises as much as the word of the TTL falls, in one's complement. A new checksum would need
    // the options, which are not parsed, and would hide errors in the old one.
    action count_down() {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        hdr.ipv4.checksum = hdr.ipv4.checksum + 0x0100;
    }

    action count_down_with_carry() {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        hdr.ipv4.checksum = hdr.ipv4.checksum + 0x0101;
    }

    action route(bit<48> dst_mac, bit<48> src_mac, port_t port) {
        hdr.ethernet.dst_mac = dst_mac;
        hdr.ethernet.src_mac = src_mac;
        meta.reason = REASON_FORWARDED;
        meta.delivery = DELIVER_PORT;
        meta.output_port = port;
    }

    action drop() {
        meta.delivery = DELIVER_NOT;
    }

    AT_STAGE(9)
    table ipv4_route {
        key = {
            hdr.ipv4.dst_ip: lpm @name("dst_ip");
        }
        actions = { route; drop; }
        const default_action = drop();
        size = THC_ROUTE_ENTRIES;
    }

    apply {
        switch (mac_forward.apply().action_run) {
            to_router: {
                if (hdr.ipv4.isValid() && hdr.ipv4.ttl[7:1] != 0) {  // 0 and 1: at the end of its way
                    if (hdr.ipv4.checksum[15:8] == 0xff) {
                        count_down_with_carry();
                    } else {
                        count_down();
                    }
                    ipv4_route.apply();
                }
            }
        }
    }
}
