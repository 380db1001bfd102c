// Abilities of a Tofino, one command each.
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif
#include "headers.p4"

const bit<8> DROP = 1;
const bit<8> MULTICAST = 2;
const bit<8> RECIRCULATE = 3;
const bit<8> RESUBMIT = 4;
const bit<8> MIRROR = 5;
const bit<8> BYPASS = 6;
const bit<8> REGISTER_ADD = 8;
const bit<8> DIGEST = 9;
const bit<8> PAIR = 10;
const bit<8> EXCLUDE = 11;
const bit<8> TWICE = 12;

struct pair_t {
    bit<32> round;
    bit<32> count;
}

header resubmit_h {
    bit<32> data;
    bit<32> unused;
}

header mirror_h {
    bit<8> mark;
}

struct digest_t {
    bit<8>  index;
    bit<32> value;
}

struct metadata_t {
    resubmit_h resubmit;
    mirror_h   mirror;
    bit<8>     mark;
    bit<32>    data;
    MirrorId_t session;
}

parser TestIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                         out ingress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        transition select(intrinsic.resubmit_flag) {
            1: parse_resubmit;
            default: skip_port_metadata;
        }
    }

    state parse_resubmit {
        packet.extract(meta.resubmit);
#if __TARGET_TOFINO__ == 2
        packet.advance(PORT_METADATA_SIZE - 64);
#endif
        transition parse_command;
    }

    state skip_port_metadata {
        packet.advance(PORT_METADATA_SIZE);
        transition parse_command;
    }

    state parse_command {
        packet.extract(hdr.command);
        transition accept;
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                    in ingress_intrinsic_metadata_from_parser_t from_parser,
                    inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                    inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Register<bit<32>, bit<8>>(4, 0) sums;
    RegisterAction<bit<32>, bit<8>, bit<32>>(sums) add_value = {
        void apply(inout bit<32> sum, out bit<32> result) {
            sum = sum + hdr.command.value;
            result = sum;
        }
    };
    RegisterAction<bit<32>, bit<8>, bit<32>>(sums) read_value = {
        void apply(inout bit<32> sum, out bit<32> result) {
            result = sum;
        }
    };

    RegisterParam<bit<32>>(100) limit;
    Register<pair_t, bit<8>>(4, {0, 5}) pairs;
    RegisterAction<pair_t, bit<8>, bit<32>>(pairs) count_round = {
        void apply(inout pair_t pair, out bit<32> result) {
            if (pair.round == hdr.command.value) {
                pair.count = pair.count + 1;
            } else {
                pair.count = limit.read();
            }
            pair.round = hdr.command.value;
            result = pair.count;
        }
    };

    Counter<bit<32>, bit<8>>(4, CounterType_t.PACKETS) packets;
    DirectCounter<bit<32>>(CounterType_t.PACKETS_AND_BYTES) port_packets;

    action to_port(PortId_t port) {
        for_tm.ucast_egress_port = port;
        port_packets.count();
    }

    action miss() {
        port_packets.count();
    }

    table ports {
        key = { hdr.command.index: exact @name("index"); }
        actions = { to_port; miss; }
        const default_action = miss();
        counters = port_packets;
        size = 8;
    }

    apply {
        packets.count(0);
        ports.apply();
        if (hdr.command.command == DROP) {
            for_deparser.drop_ctl = 1;
        } else if (hdr.command.command == MULTICAST) {
            for_tm.ucast_egress_port = 0x1ff;
            for_tm.mcast_grp_a = 7;
            for_tm.mcast_grp_b = 8;
        } else if (hdr.command.command == EXCLUDE) {
            for_tm.ucast_egress_port = 0x1ff;
            for_tm.mcast_grp_a = 7;
            for_tm.level1_exclusion_id = 3;
            for_tm.level2_exclusion_id = 4;
            for_tm.rid = 17;
        } else if (hdr.command.command == RECIRCULATE && hdr.command.passes < 3) {
            for_tm.ucast_egress_port = intrinsic.ingress_port[8:7] ++ hdr.command.value[6:0];
            hdr.command.passes = hdr.command.passes + 1;
        } else if (hdr.command.command == RESUBMIT && intrinsic.resubmit_flag == 0) {
            for_deparser.resubmit_type = 1;
            meta.data = 0x55667788;
        } else if (hdr.command.command == RESUBMIT) {
            hdr.command.value = meta.resubmit.data;
        } else if (hdr.command.command == MIRROR) {
            for_deparser.mirror_type = 1;
            meta.session = 5;
            meta.mark = 0xaa;
        } else if (hdr.command.command == BYPASS) {
            for_tm.bypass_egress = 1;
        } else if (hdr.command.command == REGISTER_ADD) {
            hdr.command.value = add_value.execute(hdr.command.index);
        } else if (hdr.command.command == PAIR) {
            hdr.command.value = count_round.execute(hdr.command.index);
        } else if (hdr.command.command == DIGEST) {
            for_deparser.digest_type = 1;
        } else if (hdr.command.command == TWICE) {
            hdr.command.value = add_value.execute(hdr.command.index);
            hdr.command.value = read_value.execute(hdr.command.index);
        }
    }
}

control TestIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                            in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    Resubmit(1) resubmit;
    Mirror(1) mirror;
    Digest<digest_t>(1) digest;

    apply {
        if (for_deparser.resubmit_type == 1) {
            resubmit.emit<resubmit_h>({meta.data, 0});
        }
        if (for_deparser.mirror_type == 1) {
            mirror.emit<mirror_h>(meta.session, {meta.mark});
        }
        if (for_deparser.digest_type == 1) {
            digest.pack({hdr.command.index, hdr.command.value});
        }
        packet.emit(hdr.command);
    }
}

parser TestEgressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                        out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        transition select(packet.lookahead<bit<8>>()) {
            0xaa: parse_mirror;
            default: parse_command;
        }
    }

    state parse_mirror {
        packet.extract(meta.mirror);
        transition parse_command;
    }

    state parse_command {
        packet.extract(hdr.command);
        transition accept;
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
                   in egress_intrinsic_metadata_from_parser_t from_parser,
                   inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                   inout egress_intrinsic_metadata_for_output_port_t for_port) {
    apply {
        if (meta.mirror.isValid()) {
            hdr.command.passes = meta.mirror.mark;
        } else if (hdr.command.command == MULTICAST || hdr.command.command == EXCLUDE) {
            hdr.command.seen = intrinsic.egress_rid[7:0];
        } else {
            hdr.command.seen = 0xe0;  // went through egress
        }
    }
}

control TestEgressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                           in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr.command);
    }
}

Pipeline(TestIngressParser(), TestIngress(), TestIngressDeparser(),
         TestEgressParser(), TestEgress(), TestEgressDeparser()) pipe;

Switch(pipe) main;
