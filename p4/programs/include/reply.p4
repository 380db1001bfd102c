// Turns a packet into the aggregator's answer: STRAGGLER, ERROR, AGGREGATE or MAX_NORM. Replies before the result carry
// the codes of the packet behind the end of their IP datagram, where every IP stack takes them for padding of the
// Ethernet frame: without mirroring a Tofino cannot cut a packet off.
#define RESULT_BYTES (32 + THC_PASSES * 128)

control Reply(inout headers_t hdr, inout metadata_t meta) {
    action turn_round(bit<8> message_type, bit<16> total_length, bit<16> udp_length) {
        bit<48> service_mac = hdr.ethernet.dst_mac;
        hdr.ethernet.dst_mac = hdr.ethernet.src_mac;
        hdr.ethernet.src_mac = service_mac;
        bit<32> service_ip = hdr.ipv4.dst_ip;
        hdr.ipv4.dst_ip = hdr.ipv4.src_ip;
        hdr.ipv4.src_ip = service_ip;
        bit<16> service_port = hdr.udp.dst_port;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = service_port;
        hdr.ipv4.total_length = total_length;
        hdr.ipv4.ttl = 64;
        hdr.udp.length = udp_length;
        hdr.udp.checksum = 0;  // none: a Tofino cannot sum up unparsed bytes
        hdr.thc.message_type = message_type;
        hdr.thc.switch_pass = 0;
        hdr.thc.switch_step = 0;
        hdr.thc.switch_state = 0;
        meta.rewritten = 1;
    }

    action straggler() {
        turn_round(THC_TYPE_STRAGGLER, 20 + 8 + 32, 8 + 32);
        hdr.thc.flags = 0;
        hdr.thc.contributions = 0;
        hdr.thc.payload_count = 0;
    }

    action error_reply() {
        turn_round(THC_TYPE_ERROR, 20 + 8 + 32 + 16, 8 + 32 + 16);
        hdr.thc.flags = 0;
        hdr.thc.contributions = 0;
        hdr.thc.payload_count = 0;
        hdr.error_payload.setValid();
        hdr.error_payload.worker_bitmap = 32w0 ++ (meta.bitmap_before | meta.other_racks);
        hdr.error_payload.reason = 8w0 ++ meta.reason;
        hdr.error_payload.field = THC_FIELD_NONE;
        hdr.error_payload.job_value = 0;
    }

    action result(bit<8> message_type) {
        turn_round(message_type, 20 + 8 + RESULT_BYTES, 8 + RESULT_BYTES);
    }

    // The root's, which Leaf rewrites. The root's last rack says nothing about the last worker of this rack.
    action result_of_root(bit<8> message_type) {
        turn_round(message_type, 20 + 8 + RESULT_BYTES, 8 + RESULT_BYTES);
        hdr.thc.flags = hdr.thc.flags & THC_FLAG_CONGESTED;
    }

    action error_of_root() {
        turn_round(THC_TYPE_ERROR, 20 + 8 + 32 + 16, 8 + 32 + 16);
    }

    table reply {
        key = {
            meta.reply: ternary;
            hdr.thc.message_type: ternary;
        }
        actions = { straggler; error_reply; result; result_of_root; error_of_root; @defaultonly NoAction; }
        const entries = {
            (REPLY_STRAGGLER, _): straggler();
            (REPLY_ERROR, _): error_reply();
            (REPLY_RESULT, THC_TYPE_CODES): result(THC_TYPE_AGGREGATE);
            (REPLY_RESULT, THC_TYPE_NORM): result(THC_TYPE_MAX_NORM);
            // The root's packets.
            (REPLY_RESULT, THC_TYPE_AGGREGATE): result_of_root(THC_TYPE_AGGREGATE);
            (REPLY_RESULT, THC_TYPE_MAX_NORM): result_of_root(THC_TYPE_MAX_NORM);
            (REPLY_RESULT, THC_TYPE_STRAGGLER): straggler();
            (REPLY_RESULT, THC_TYPE_ERROR): error_of_root();
        }
        const default_action = NoAction();
        SIZE_OF_CONST_ENTRIES(8)
    }

    apply {
        reply.apply();
    }
}
