// THC aggregator for bmv2 (simple_switch): the same controls, passes and packets as ../tna/thc_tna.p4.
#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>

// p4c takes the size from the entries, and warns of another.
#define SIZE_OF_CONST_ENTRIES(entries)

// bmv2 has no stages.
#define AT_STAGE(number)

#define WORKER_COUNTER(name) direct_counter(CounterType.packets) name;
#define COUNT_WORKER(name)  // v1model counts the hits of a table by itself

#include "../include/controls.p4"
#include "aggregation_blocks.p4"
#include "slot_check.p4"

#define META meta
#define INGRESS_PORT ingress_port
#define COUNT_CONTRIBUTIONS \
    if (meta.use == USE_FRESH) { \
        begin_count(); \
    } else if (meta.use == USE_JOINED) { \
        read_count(); \
    }
#define COUNT_LAST_PASS count_one();

// standard_metadata.instance_type of simple_switch.
const bit<32> INSTANCE_RECIRCULATED = 4;

parser ThcV1Parser(
        packet_in packet,
        out headers_t hdr,
        inout metadata_t meta,
        inout standard_metadata_t standard_metadata) {
    ThcParser() thc_parser;

    state start {
        thc_parser.apply(packet, hdr);
        transition accept;
    }
}

control NoVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

// All registers are here: simple_switch has one ingress thread and several egress threads.
control ThcIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter<bit<8>>(THC_REASONS, CounterType.packets) reasons;

#include "../include/ingress_controls.p4"

    // Round ++ contributions that are through all their passes, by version. A packet that is lost between two passes
    // never completes a slot: the workers' deadline reports it, instead of a sum that lacks rows.
    register<bit<64>, bit<16>>(THC_VERSIONS) finished;

    action begin_count() {
        finished.write(hdr.thc.switch_state, hdr.thc.round ++ 32w0);
    }

    action read_count() {
        bit<64> value;
        finished.read(value, hdr.thc.switch_state);
        meta.finished = value[7:0];
    }

    action count_one() {
        bit<64> value;
        finished.read(value, hdr.thc.switch_state);
        bool same_round = value[63:32] == hdr.thc.round;
        meta.finished = same_round ? value[7:0] + 1 : 0;
        finished.write(hdr.thc.switch_state, same_round ? value + 1 : value);
    }

    apply {
        port_t ingress_port = standard_metadata.ingress_port;
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            ingress_port = meta.output_port;  // simple_switch does not say through which port it looped a packet back
        }
        port_role.apply(meta, ingress_port);
        bool truncated = hdr.thc.isValid() &&
            standard_metadata.packet_length < 14 + (bit<32>)hdr.ipv4.total_length && meta.role != ROLE_RECIRCULATION;
        if (standard_metadata.parser_error == error.NoError && !truncated) {
#include "../include/ingress_apply.p4"
        } else {
            meta.reason = REASON_PARSER_ERROR;
        }
        if (meta.delivery == DELIVER_RECIRCULATE && meta.work != WORK_DELIVER) {
            pass_control.apply(hdr, meta.output_port);
        }
        if (meta.delivery == DELIVER_GROUP) {
            standard_metadata.mcast_grp = meta.group;
        } else if (meta.delivery == DELIVER_NOT) {
            mark_to_drop(standard_metadata);
        } else {
            standard_metadata.egress_spec = meta.output_port;
        }
        if (meta.reason != REASON_NONE) {
            reasons.count(meta.reason);
        }
    }
}

control ThcEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Leaf() leaf;
    Replica() replica;

    apply {
        if (meta.delivery == DELIVER_RECIRCULATE) {
            recirculate_preserving_field_list(0);  // output_port
        } else if (meta.is_result == 1) {
            leaf.apply(hdr);
            replica.apply(hdr, meta, standard_metadata.egress_rid);
            if (meta.delivery == DELIVER_NOT) {
                mark_to_drop(standard_metadata);
            }
        } else if (meta.delivery == DELIVER_GROUP &&
                   standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);  // a flood goes to all ports but the one it came from
        }
    }
}

control ThcComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewritten == 1, {IPV4_CHECKSUM_FIELDS(hdr.ipv4)}, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ThcDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(
    ThcV1Parser(),
    NoVerifyChecksum(),
    ThcIngress(),
    ThcEgress(),
    ThcComputeChecksum(),
    ThcDeparser()) main;
