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

// Where the register `finished` finds a free stateful ALU.
#ifdef THC_TOFINO2
#define FINISHED_STAGE 11
#else
#define FINISHED_STAGE 5
#endif

#define WORKER_COUNTER(name) DirectCounter<bit<32>>(CounterType_t.PACKETS) name;
#define COUNT_WORKER(name) name.count();

#include "../include/thc_config.p4"
#include "../include/headers.p4"
#include "../include/metadata.p4"
#include "../include/reasons.p4"
#include "../include/parser.p4"
#include "../include/port_role.p4"
#include "../include/service.p4"
#include "../include/packet_check.p4"
#include "../include/job_check.p4"
#include "../include/admission.p4"
#include "../include/pass_row.p4"
#include "../include/next_pass.p4"
#include "../include/verdict.p4"
#include "../include/result.p4"
#include "../include/reply.p4"
#include "../include/pass_control.p4"
#include "../include/forwarding.p4"
#include "../include/leaf.p4"
#include "../include/replica.p4"

// What egress has to know of a replica; removed there.
header bridge_h {
    @padding bit<6> pad;
    bit<1> is_result;
    port_t ingress_port;
}

// The least that the egress parser of Tofino 1 may take off a packet is 65 bytes, its metadata included. Of a flooded
// frame that is an ARP packet's bytes; no frame is shorter.
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
