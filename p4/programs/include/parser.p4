// Parser of both programs.
#ifndef THC_PARSER_P4_
#define THC_PARSER_P4_


parser ThcParser(packet_in packet, out headers_t hdr) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }

    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, IP_PROTOCOL_UDP): parse_udp;  // no options, and not a fragment
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port, hdr.udp.length) {
            (THC_UDP_PORT, 40): parse_thc;              // GOODBYE, and the root's PROBE and STRAGGLER: a header alone
            (THC_UDP_PORT, 48): parse_thc;              // the root's CHALLENGE
            (THC_UDP_PORT, 56): parse_thc;              // its WELCOME and ERROR
            (THC_UDP_PORT, 0 &&& 0xffc0): accept;       // too short for any other, perhaps for a header
            (THC_UDP_PORT, _): parse_thc;
            default: accept;
        }
    }

    // A step of the switch is required to strip a pass's payload. PacketCheck detects a forged step before any use.
    state parse_thc {
        packet.extract(hdr.thc);
        transition select(hdr.thc.switch_step, hdr.thc.message_type) {
            (ASCENDING_STEPS, THC_TYPE_CODES): parse_codes;
            (ASCENDING_STEPS, THC_TYPE_NORM): parse_norms;
            (STEP_CHECK, THC_TYPE_ERROR): parse_error;
            default: accept;
        }
    }

    state parse_error {
        packet.extract(hdr.error_payload);
        transition accept;
    }

    state parse_codes {
        packet.extract(hdr.codes);
        transition accept;
    }

    state parse_norms {
        packet.extract(hdr.words);
        transition accept;
    }
}

#endif  // THC_PARSER_P4_
