// The truth table over the findings of earlier checks. Only packets that end in check() or finish() reach the
// registers.

// The same for all packets of a round, and never zero, which is the order of a version without a packet. PacketCheck
// has seen that the 4 bits between are zero.
#define ORDER(thc) (thc.partition ++ 4w1 ++ thc.chunk[11:0])

control Admission(inout headers_t hdr, inout metadata_t meta, in port_t ingress_port) {
    // Slot state: index of the round's version, order of the packet, contributions it takes.
    action check() {
        meta.work = WORK_CHECK;
        hdr.thc.switch_pass = 1;
        hdr.thc.switch_state = meta.slot_index[14:0] ++ hdr.thc.round[0:0];
        hdr.thc.contributions = meta.quorum;
        meta.order = ORDER(hdr.thc);
    }

    action finish() {
        meta.work = WORK_FINISH;
        meta.absent = hdr.thc.num_workers - hdr.thc.contributions;
        meta.order = ORDER(hdr.thc);
    }

    action refuse() {  // meta.reason was set by JobCheck
        meta.work = WORK_REPLY;
        meta.reply = REPLY_ERROR;
        meta.delivery = DELIVER_PORT;
        meta.output_port = ingress_port;
    }

    // A root's packet for the workers of a leaf's rack: Reply turns it round, Leaf and Replica give it their headers.
    action pass_on() {
        meta.work = WORK_REPLY;
        meta.reason = REASON_FROM_ROOT;
        meta.reply = REPLY_RESULT;
        meta.delivery = DELIVER_GROUP;
        meta.is_result = 1;
    }

    action reply_arp() {
        meta.work = WORK_DELIVER;
        meta.reason = REASON_ARP;
        meta.delivery = DELIVER_PORT;
        meta.output_port = ingress_port;
    }

    action to_cpu() {  // meta.output_port was set by Service
        meta.work = WORK_DELIVER;
        meta.reason = REASON_TO_CPU;
        meta.delivery = DELIVER_PORT;
    }

    action to_home_pipe() {
        meta.work = WORK_DELIVER;
        meta.reason = REASON_TO_HOME_PIPE;
        meta.delivery = DELIVER_RECIRCULATE;
        meta.output_port = meta.home_port;
    }

    action forward() {
        meta.work = WORK_FORWARD;
        meta.reason = REASON_FORWARDED;
    }

    action reject(bit<8> reason) {
        meta.work = WORK_DELIVER;
        meta.reason = reason;
    }

    table admission {
        key = {
            meta.role: ternary;
            hdr.thc.switch_step: ternary;
            meta.service: ternary;
            meta.shape: ternary;
            meta.job: ternary;
            meta.sender: ternary;
        }
        actions = { check; finish; refuse; pass_on; reply_arp; to_cpu; to_home_pipe; forward; reject; }
        const entries = {
            // Recirculating packets were admitted in their first pass; a job closed meanwhile has no receivers.
            (ROLE_RECIRCULATION, STEP_FINISH, SERVICE_SLOTS, _, JOB_ENTERED, _): finish();
            (ROLE_RECIRCULATION, STEP_FINISH_ONE, SERVICE_SLOTS, _, JOB_ENTERED, _): finish();
            (ROLE_RECIRCULATION, STEP_FINISH, _, _, _, _): reject(REASON_OVERWRITTEN);
            (ROLE_RECIRCULATION, STEP_FINISH_ONE, _, _, _, _): reject(REASON_OVERWRITTEN);
            (ROLE_RECIRCULATION, STEP_CHECK, SERVICE_SLOTS, SHAPE_FITS, JOB_ENTERED, SENDER_WORKER): check();
            (ROLE_RECIRCULATION, _, _, _, _, _): reject(REASON_UNKNOWN_WORKER);
            (ROLE_CPU, _, _, _, _, _): forward();
            (_, _, SERVICE_NONE, _, _, _): forward();
            (_, _, SERVICE_ARP, _, _, _): reply_arp();
            (_, _, _, SHAPE_SPOOFED, _, _): reject(REASON_SPOOFED);
            (_, _, SERVICE_CPU, _, _, _): to_cpu();
            (_, _, _, SHAPE_NONE, _, _): reject(REASON_MALFORMED);
            (_, _, _, SHAPE_MALFORMED, _, _): reject(REASON_MALFORMED);
            (_, _, _, SHAPE_FROM_ROOT, JOB_ENTERED, SENDER_ROOT): pass_on();
            (_, _, _, SHAPE_FROM_ROOT, _, _): reject(REASON_NOT_ROOT);
            (_, _, _, _, JOB_MALFORMED, _): reject(REASON_MALFORMED);
            (_, _, _, _, JOB_REFUSED, _): refuse();
            (ROLE_FRONT_OF_OTHER_PIPE, _, _, _, _, SENDER_WORKER): to_home_pipe();
            (ROLE_FRONT, _, _, _, _, SENDER_WORKER): check();
        }
        const default_action = reject(REASON_UNKNOWN_WORKER);
        SIZE_OF_CONST_ENTRIES(19)
    }

    apply {
        admission.apply();
    }
}
