// Why a packet ended its way here: index of the counter `reasons`. Packets that only take another pass are not counted.
#ifndef THC_REASONS_P4_
#define THC_REASONS_P4_

const bit<8> REASON_NONE = 0;
// Answered with an ERROR, whose reason has the same number (THC_REASON_...).
const bit<8> REASON_INCOMPLETE = 1;
const bit<8> REASON_UNKNOWN_JOB = 2;
@noWarn("unused")
const bit<8> REASON_STALE_EPOCH = 3;  // given by the control plane (JobCheck)
const bit<8> REASON_ORDER_MISMATCH = 8;
// Others.
const bit<8> REASON_ABSORBED = 16;        // added; the slot waits for others
const bit<8> REASON_COMPLETED = 17;       // added, and the result went to all workers; a leaf's to the root
const bit<8> REASON_REPLAYED = 18;        // the result went to the sender once more; a leaf's to the root
const bit<8> REASON_DUPLICATE = 19;       // counted before, and did not ask for the state of the slot
const bit<8> REASON_STRAGGLER = 20;       // answered with STRAGGLER
const bit<8> REASON_OVERWRITTEN = 21;     // the slot went to another round while the result was collected (quorum)
const bit<8> REASON_UNKNOWN_WORKER = 22;  // not the address of this worker, or no worker's message
const bit<8> REASON_MALFORMED = 23;
const bit<8> REASON_SPOOFED = 24;         // fields of the switch set by the sender
const bit<8> REASON_PARSER_ERROR = 25;    // shorter than its headers say
const bit<8> REASON_FORWARDED = 26;       // not for the aggregator
const bit<8> REASON_UNROUTABLE = 27;      // to the router's MAC, without a route or at the end of its TTL
const bit<8> REASON_TO_CPU = 28;
const bit<8> REASON_ARP = 29;             // ARP request for the aggregator, answered
const bit<8> REASON_TO_HOME_PIPE = 30;    // came in through another pipe; counted again in the home pipe
const bit<8> REASON_FROM_ROOT = 31;       // the root's answer to a leaf, sent on to the workers of the rack
const bit<8> REASON_NOT_ROOT = 32;        // as from a root, but not from the address or of the job of this leaf's

#endif  // THC_REASONS_P4_
