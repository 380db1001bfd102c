// Abilities of simple_switch, one command each.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const bit<8> DROP = 1;
const bit<8> MULTICAST = 2;
const bit<8> RECIRCULATE = 3;
const bit<8> RESUBMIT = 4;
const bit<8> CLONE_INGRESS = 5;
const bit<8> CLONE_EGRESS = 6;
const bit<8> TRUNCATE = 7;
const bit<8> REGISTER_ADD = 8;
const bit<8> DIGEST = 9;
const bit<8> LOOP = 10;

struct metadata_t {
    @field_list(1)
    bit<8> kept;
    bit<8> lost;
}

struct digest_t {
    bit<8>  index;
    bit<32> value;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.command);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(4) sums;
    counter(4, CounterType.packets_and_bytes) packets;
    direct_counter(CounterType.packets) port_packets;

    action to_port(bit<9> port) {
        standard.egress_spec = port;
    }

    table ports {
        key = { hdr.command.index: exact @name("index"); }
        actions = { to_port; NoAction; }
        default_action = NoAction();
        counters = port_packets;
        size = 8;
    }

    apply {
        packets.count((bit<32>)hdr.command.index & 3);
        if (standard.parser_error != error.NoError) {
            standard.egress_spec = 15;
        } else {
            ports.apply();
        }
        if (hdr.command.command == DROP) {
            mark_to_drop(standard);
        } else if (hdr.command.command == MULTICAST) {
            standard.mcast_grp = 7;
        } else if (hdr.command.command == RESUBMIT && standard.instance_type == 0) {
            meta.kept = 0x4b;
            meta.lost = 0x4c;
            resubmit_preserving_field_list(1);
        } else if (hdr.command.command == RESUBMIT) {
            hdr.command.value = standard.instance_type;
            hdr.command.seen = meta.kept + meta.lost;
        } else if (hdr.command.command == CLONE_INGRESS) {
            meta.kept = 0x4b;
            hdr.command.value = 1;
            clone_preserving_field_list(CloneType.I2E, 5, 1);
        } else if (hdr.command.command == REGISTER_ADD) {
            bit<32> sum;
            sums.read(sum, (bit<32>)hdr.command.index);
            sum = sum + hdr.command.value;
            sums.write((bit<32>)hdr.command.index, sum);
            hdr.command.value = sum;
        } else if (hdr.command.command == DIGEST) {
            digest<digest_t>(1, { hdr.command.index, hdr.command.value });
        } else if (standard.instance_type == 4) {
            // Recirculated: ingress_port is not kept, the field list is.
            hdr.command.seen = (bit<8>)standard.ingress_port + meta.kept + meta.lost;
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (standard.instance_type == 1 || standard.instance_type == 2) {
            hdr.command.seen = meta.kept;
            hdr.command.passes = 0xc0 | (bit<8>)standard.instance_type;
        } else if (hdr.command.command == MULTICAST) {
            hdr.command.seen = (bit<8>)standard.egress_rid;
        } else if (hdr.command.command == RECIRCULATE && hdr.command.passes < 3) {
            hdr.command.passes = hdr.command.passes + 1;
            meta.kept = 0x10;
            meta.lost = 0x20;
            recirculate_preserving_field_list(1);
        } else if (hdr.command.command == CLONE_EGRESS) {
            meta.kept = 0x22;
            clone_preserving_field_list(CloneType.E2E, 5, 1);
        } else if (hdr.command.command == TRUNCATE) {
            truncate(8);
        } else if (hdr.command.command == LOOP) {
            recirculate_preserving_field_list(1);
        }
    }
}

control TestVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TestCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.command);
    }
}

V1Switch(TestParser(), TestVerify(), TestIngress(), TestEgress(), TestCompute(), TestDeparser()) main;
