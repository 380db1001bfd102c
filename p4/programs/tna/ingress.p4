// Ingress: all of the aggregator but the addresses of replicas.
#define META ig_md.meta
#define INGRESS_PORT ig_intr_md.ingress_port
#define COUNT_CONTRIBUTIONS contributions.apply();
#define COUNT_LAST_PASS last_pass.apply();

struct finished_t {
    bit<32> round;
    bit<32> count;
}

#ifdef THC_TOFINO2
// Containers that the input crossbar can bring to the stateful ALU of slot_use.
@pa_container_size("ingress", "hdr.thc.round", 16)
@pa_container_size("ingress", "ig_md.meta.order", 32)
#endif
control ThcIngress(
        inout headers_t hdr,
        inout tna_metadata_t ig_md,
        in ingress_intrinsic_metadata_t ig_intr_md,
        in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
        inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
        inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Counter<bit<32>, bit<8>>(THC_REASONS, CounterType_t.PACKETS) reasons;

#include "../include/ingress_controls.p4"

    // Contributions that are through all their passes, by version. A packet that is lost between two passes never
    // completes a slot: the workers' deadline reports it, instead of a sum that lacks rows. It is here because both
    // branches of apply need it.
    Register<finished_t, bit<16>>(THC_VERSIONS, {0, 0}) finished;

    RegisterAction<finished_t, bit<16>, bit<8>>(finished) begin_count = {
        void apply(inout finished_t value) {
            value.round = hdr.thc.round;
            value.count = 0;
        }
    };

    RegisterAction<finished_t, bit<16>, bit<8>>(finished) read_count = {
        void apply(inout finished_t value, out bit<8> count) {
            count = value.count[7:0];
        }
    };

    RegisterAction<finished_t, bit<16>, bit<8>>(finished) count_one = {
        void apply(inout finished_t value, out bit<8> count) {
            count = 0;
            if (value.round == hdr.thc.round) {
                value.count = value.count + 1;
                count = value.count[7:0];
            }
        }
    };

    action begin() {
        begin_count.execute(hdr.thc.switch_state);
    }

    action read() {
        ig_md.meta.finished = read_count.execute(hdr.thc.switch_state);
    }

    @stage(FINISHED_STAGE)
    table contributions {
        key = {
            ig_md.meta.use: exact;
        }
        actions = { begin; read; @defaultonly NoAction; }
        const entries = {
            USE_FRESH: begin();
            USE_JOINED: read();
        }
        const default_action = NoAction();
        size = 2;
    }

    action count() {
        ig_md.meta.finished = count_one.execute(hdr.thc.switch_state);
    }

    @stage(FINISHED_STAGE)
    table last_pass {
        actions = { count; }
        const default_action = count();
        size = 1;
    }

    action to_port() {
        ig_tm_md.ucast_egress_port = ig_md.meta.output_port;
    }

    action to_group() {
        ig_tm_md.bypass_egress = 0;
        ig_tm_md.mcast_grp_a = ig_md.meta.group;
        ig_md.bridge.setValid();
        ig_md.bridge.is_result = ig_md.meta.is_result;
        ig_md.bridge.ingress_port = ig_intr_md.ingress_port;
    }

    action drop() {
        ig_dprsr_md.drop_ctl = 1;
    }

    apply {
        ig_tm_md.bypass_egress = 1;  // only replicas need egress
        port_role.apply(ig_md.meta, ig_intr_md.ingress_port);
        if (ig_prsr_md.parser_err == 0) {
#include "../include/ingress_apply.p4"
        } else {
            ig_md.meta.reason = REASON_PARSER_ERROR;
        }
        // The port goes where the traffic manager looks for it: a copy would take one more stage.
        if (ig_md.meta.delivery == DELIVER_RECIRCULATE && ig_md.meta.work != WORK_DELIVER) {
            pass_control.apply(hdr, ig_tm_md.ucast_egress_port);
        } else if (ig_md.meta.delivery == DELIVER_GROUP) {
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

// Metadata start at zero.
@noWarn("uninitialized-out-param")
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
