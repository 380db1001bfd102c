// THC aggregator for Tofino: `-DTHC_TOFINO2` for Tofino 2.
#include <core.p4>
#ifdef THC_TOFINO2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

// The Tofino back end takes 512 where no size is given, and warns.
#define SIZE_OF_CONST_ENTRIES(entries) size = entries;

// Stages of tables that would take the blocks' places.
#define AT_STAGE(number) @stage(number)

// Stage in which the register `finished` finds a free stateful ALU.
#ifdef THC_TOFINO2
#define FINISHED_STAGE 11
#else
#define FINISHED_STAGE 5
#endif

#define WORKER_COUNTER(name) DirectCounter<bit<32>>(CounterType_t.PACKETS) name;
#define COUNT_WORKER(name) name.count();

#include "../include/controls.p4"

// A replica's facts for egress, which removes them.
header bridge_h {
    @padding bit<6> pad;
    bit<1> is_result;
    port_t ingress_port;
}

// The egress parser of Tofino 1 takes at least 65 bytes off a packet, its metadata included. A flooded frame gives an
// ARP packet's bytes; no frame is shorter.
header flooded_h {
    bit<48> dst_mac;
    bit<48> src_mac;
    bit<16> ether_type;
    bit<224> data;
}

struct tna_metadata_t {
    metadata_t meta;
    bridge_h bridge;
    flooded_h flooded;
}

#include "aggregation_blocks.p4"
#include "slot_check.p4"
#include "ingress.p4"
#include "egress.p4"

Pipeline(
    ThcIngressParser(),
    ThcIngress(),
    ThcIngressDeparser(),
    ThcEgressParser(),
    ThcEgress(),
    ThcEgressDeparser()) pipe;

Switch(pipe) main;
