// SlotCheck's steps. The programs define, on their registers: NOTE_ROUND, LOOK, START_OVER and JOIN.
if (meta.work == WORK_CHECK || meta.work == WORK_FINISH) {
    if (meta.work == WORK_CHECK) {
        slot_packets.count(meta.slot_index);
        NOTE_ROUND
    } else {
        meta.stale = 1;  // a result only looks at its version
    }
    LOOK
    if (meta.found_order == 0) {
        if (meta.stale == 0) {
            meta.use = USE_FRESH;
            START_OVER
        } else {
            meta.use = USE_STRAGGLER;
        }
    } else if (meta.found_order == meta.order) {
        meta.use = USE_JOINED;
        if (meta.work == WORK_CHECK) {
            JOIN
        }
    } else {
        meta.use = USE_MISMATCH;
    }
}
meta.seen = meta.bitmap_before & meta.worker_bit;
