// Egress: only replicas come here, of results and of floods.
@noWarn("uninitialized-out-param")  // metadata start at zero
parser ThcEgressParser(
        packet_in packet,
        out headers_t hdr,
        out tna_metadata_t eg_md,
        out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        packet.extract(eg_md.bridge);
        transition select(eg_md.bridge.is_result) {
            1: parse_result;
            default: parse_flooded;
        }
    }

    state parse_flooded {
        packet.extract(eg_md.flooded);
        transition accept;
    }

    state parse_result {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.thc);
        transition select(hdr.thc.message_type) {
            THC_TYPE_ERROR: parse_error;  // a root's
            default: accept;
        }
    }

    state parse_error {
        packet.extract(hdr.error_payload);
        transition accept;
    }
}

control ThcEgress(
        inout headers_t hdr,
        inout tna_metadata_t eg_md,
        in egress_intrinsic_metadata_t eg_intr_md,
        in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
        inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
        inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Leaf() leaf;
    Replica() replica;

    action drop() {
        eg_dprsr_md.drop_ctl = 1;
    }

    apply {
        if (eg_md.bridge.is_result == 1) {
            leaf.apply(hdr);
            replica.apply(hdr, eg_md.meta, eg_intr_md.egress_rid);
            if (eg_md.meta.delivery == DELIVER_NOT) {
                drop();
            }
        } else if (eg_intr_md.egress_port == eg_md.bridge.ingress_port) {
            drop();  // a flood goes to all ports but the one it came from
        }
    }
}

control ThcEgressDeparser(
        packet_out packet,
        inout headers_t hdr,
        in tna_metadata_t eg_md,
        in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update({IPV4_CHECKSUM_FIELDS(hdr.ipv4)});
        }
        packet.emit(eg_md.flooded);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.thc);
        packet.emit(hdr.error_payload);
    }
}
