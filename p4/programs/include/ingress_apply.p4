// ThcIngress's steps for a parsed packet. The programs define META, INGRESS_PORT and, on the register `finished`:
// COUNT_CONTRIBUTIONS before the verdict on a packet, COUNT_LAST_PASS behind its last row.
service.apply(hdr, META);
if (hdr.thc.isValid()) {
    pass_row.apply(hdr, META);
    packet_check.apply(hdr, META);
    job_check.apply(hdr, META);
}
// Two branches, which share the stages of the hardware: a packet meets either its slot or its sums.
if (META.role == ROLE_RECIRCULATION && IS_ROW_STEP(hdr.thc.switch_step)) {
    blocks.apply(hdr, META);
    // This is the last pass of a contribution, whose job was not closed meanwhile.
    if (PASS_NUMBER(hdr.thc) == THC_PASSES && IS_ASCENDING(META.step) &&
        IS_NO_SKIP(META.step) && META.job == JOB_ENTERED) {
        COUNT_LAST_PASS
    }
    META.missing = hdr.thc.contributions - META.finished;
    next_pass.apply(hdr, META);
} else {
    admission.apply(hdr, META, INGRESS_PORT);
    slot_check.apply(hdr, META);
    if (META.work != WORK_FORWARD) {
        if (META.work == WORK_CHECK) {
            COUNT_CONTRIBUTIONS
            META.missing = hdr.thc.contributions - META.finished;
            verdict.apply(hdr, META);
        } else if (META.work == WORK_FINISH) {
            result.apply(hdr, META);
        }
        reply.apply(hdr, META);
    } else {
        forwarding.apply(hdr, META);
    }
}
