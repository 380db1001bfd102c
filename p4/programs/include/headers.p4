// Parsed headers of a packet. The THC headers are generated (thc_wire.p4).
#ifndef THC_HEADERS_P4_
#define THC_HEADERS_P4_

#include "for_blocks.p4"
#include "thc_wire.p4"

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> IP_PROTOCOL_UDP = 17;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;

header ethernet_h {
    bit<48> dst_mac;
    bit<48> src_mac;
    bit<16> ether_type;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8> hardware_bytes;
    bit<8> protocol_bytes;
    bit<16> opcode;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<8> diffserv;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src_ip;
    bit<32> dst_ip;
}

#define IPV4_CHECKSUM_FIELDS(ipv4) \
    ipv4.version, ipv4.ihl, ipv4.diffserv, ipv4.total_length, ipv4.identification, ipv4.flags, ipv4.fragment_offset, \
    ipv4.ttl, ipv4.protocol, ipv4.src_ip, ipv4.dst_ip

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// Codes of one pass: block i adds the four codes of high_i and low_i.
#define CODES_OF_BLOCK(i) bit<8> high_##i; bit<8> low_##i;
header codes_h {
    FOR_BLOCKS(CODES_OF_BLOCK)
}

// One 32-bit word per block: four sums of 8 bits, or a norm. A pass adds and collects words.
#define WORD_OF_BLOCK(i) bit<32> word_##i;
header words_h {
    FOR_BLOCKS(WORD_OF_BLOCK)
}

struct headers_t {
    ethernet_h ethernet;
    arp_h arp;
    ipv4_h ipv4;
    udp_h udp;
    thc_h thc;
    thc_error_h error_payload;
    words_h words;
    codes_h codes;
}

#endif  // THC_HEADERS_P4_
