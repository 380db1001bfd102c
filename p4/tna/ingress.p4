// Ingress: all of the aggregator but the addresses of replicas.
control ThcIngress(
        inout headers_t hdr,
        inout tna_metadata_t ig_md,
        in ingress_intrinsic_metadata_t ig_intr_md,
        in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
        inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
        inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Counter<bit<32>, bit<8>>(THC_REASONS, CounterType_t.PACKETS) reasons;

    PortRole() port_role;
    PassRow() pass_row;
    Service() service;
    PacketCheck() packet_check;
    JobCheck() job_check;
    Admission() admission;
    AggregationBlocks() blocks;
    SlotCheck() slot_check;
    Verdict() verdict;
    Result() result;
    Reply() reply;
    PassControl() pass_control;
    Forwarding() forwarding;

    // Unicast needs no egress processing.
    action to_port() {
        ig_tm_md.ucast_egress_port = ig_md.meta.output_port;
        ig_tm_md.bypass_egress = 1;
    }

    action to_group() {
        ig_tm_md.mcast_grp_a = ig_md.meta.group;
        ig_md.bridge.setValid();
        ig_md.bridge.is_result = ig_md.meta.is_result;
        ig_md.bridge.ingress_port = ig_intr_md.ingress_port;
    }

    action drop() {
        ig_dprsr_md.drop_ctl = 1;
    }

    apply {
        port_role.apply(ig_md.meta, ig_intr_md.ingress_port);
        if (ig_prsr_md.parser_err == 0) {
            service.apply(hdr, ig_md.meta);
            if (hdr.thc.isValid()) {
                pass_row.apply(hdr, ig_md.meta);
                packet_check.apply(hdr, ig_md.meta);
                job_check.apply(hdr, ig_md.meta);
            }
            admission.apply(hdr, ig_md.meta);
            // What WORK_PASS says, without waiting for it: the blocks need all stages.
            if (ig_md.meta.role == ROLE_RECIRCULATION && hdr.thc.switch_verdict[3:3] == 1) {
                blocks.apply(hdr, ig_md.meta);
            }
            slot_check.apply(hdr, ig_md.meta);
            if (ig_md.meta.work == WORK_CHECK) {
                verdict.apply(hdr, ig_md.meta);
            } else if (ig_md.meta.work == WORK_FINISH) {
                result.apply(hdr, ig_md.meta);
            } else if (ig_md.meta.work == WORK_FORWARD) {
                forwarding.apply(hdr, ig_md.meta);
            }
            reply.apply(hdr, ig_md.meta);
            pass_control.apply(hdr, ig_md.meta);
        } else {
            ig_md.meta.reason = REASON_PARSER_ERROR;
        }
        if (ig_md.meta.delivery == DELIVER_GROUP) {
            to_group();
        } else if (ig_md.meta.delivery == DELIVER_NOT) {
            drop();
        } else {
            to_port();
        }
        if (ig_md.meta.reason != REASON_NONE) {
            reasons.count(ig_md.meta.reason);
        }
    }
}

parser ThcIngressParser(
        packet_in packet,
        out headers_t hdr,
        out tna_metadata_t ig_md,
        out ingress_intrinsic_metadata_t ig_intr_md) {
    ThcParser() thc_parser;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        thc_parser.apply(packet, hdr);
        transition accept;
    }
}

control ThcIngressDeparser(
        packet_out packet,
        inout headers_t hdr,
        in tna_metadata_t ig_md,
        in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Checksum() ipv4_checksum;

    apply {
        if (ig_md.meta.rewritten == 1) {
            hdr.ipv4.checksum = ipv4_checksum.update({IPV4_CHECKSUM_FIELDS(hdr.ipv4)});
        }
        packet.emit(ig_md.bridge);
        packet.emit(hdr);
    }
}
