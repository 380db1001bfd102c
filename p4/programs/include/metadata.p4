// Messages of the controls to each other about one packet in one pass.
#ifndef THC_METADATA_P4_
#define THC_METADATA_P4_

typedef bit<9> port_t;

// Origin of a packet (PortRole).
const bit<2> ROLE_FRONT = 0;
const bit<2> ROLE_FRONT_OF_OTHER_PIPE = 1;
const bit<2> ROLE_RECIRCULATION = 2;
const bit<2> ROLE_CPU = 3;

// Part of the aggregator that could serve it (Service).
const bit<2> SERVICE_NONE = 0;
const bit<2> SERVICE_SLOTS = 1;
const bit<2> SERVICE_CPU = 2;
const bit<2> SERVICE_ARP = 3;

// PacketCheck.
const bit<3> SHAPE_NONE = 0;
const bit<3> SHAPE_FITS = 1;
const bit<3> SHAPE_MALFORMED = 2;
const bit<3> SHAPE_SPOOFED = 3;
const bit<3> SHAPE_FROM_ROOT = 4;  // fits a leaf's job as the root sends it

// JobCheck.
@noWarn("unused") const bit<2> JOB_NONE = 0;
const bit<2> JOB_ENTERED = 1;
const bit<2> JOB_MALFORMED = 2;
const bit<2> JOB_REFUSED = 3;

@noWarn("unused") const bit<2> SENDER_UNKNOWN = 0;
const bit<2> SENDER_WORKER = 1;
const bit<2> SENDER_ROOT = 2;

// Multicast groups of leaves, towards the root, have the highest bit.
#define IS_TO_ROOT(group) group[15:15]

// Admission's decision.
@noWarn("unused") const bit<3> WORK_NONE = 0;
const bit<3> WORK_CHECK = 1;
const bit<3> WORK_FINISH = 2;
const bit<3> WORK_REPLY = 3;
const bit<3> WORK_FORWARD = 4;
const bit<3> WORK_DELIVER = 5;

// A slot check's finding in slot_use.
const bit<2> USE_FRESH = 0;      // this packet starts the version over
const bit<2> USE_JOINED = 1;     // the version is in this round
const bit<2> USE_MISMATCH = 2;   // in this round, for another partition, chunk or count
const bit<2> USE_STRAGGLER = 3;  // the round is over

@noWarn("unused") const bit<2> REPLY_NONE = 0;
const bit<2> REPLY_STRAGGLER = 1;
const bit<2> REPLY_ERROR = 2;
const bit<2> REPLY_RESULT = 3;

const bit<2> DELIVER_NOT = 0;  // drop
const bit<2> DELIVER_PORT = 1;
const bit<2> DELIVER_RECIRCULATE = 2;
const bit<2> DELIVER_GROUP = 3;

// thc.switch_step: the step of a packet, which selects the work of its next pass. Tables and branches test its bits.
// Bit 3: the blocks work on a row (WRITE .. READ_ONE). Bit 2 of row steps: they collect the row (READ, READ_ONE).
const bit<8> STEP_CHECK = 0;
const bit<8> STEP_FINISH = 1;      // send the result to all workers
const bit<8> STEP_FINISH_ONE = 2;  // send it to the sender
const bit<8> STEP_WRITE = 8;
const bit<8> STEP_ADD = 9;
const bit<8> STEP_MAX = 10;
const bit<8> STEP_SKIP = 11;       // only strip the payload: replay
const bit<8> STEP_READ = 12;       // collect for all workers
const bit<8> STEP_READ_ONE = 13;   // collect for the sender

#define IS_ROW_STEP(step) (step[3:3] == 1)
// Ascending: a pass takes payload off the packet (WRITE, ADD, MAX, SKIP); descending: it puts a row in front.
#define IS_ASCENDING(step) (step[3:2] == 2)
#define IS_NO_SKIP(step) (step[1:0] != 3)  // ascending only: the payload contributes to the slot
// The same for ternary matches.
#define ASCENDING_STEPS STEP_WRITE &&& 0xfc
#define DESCENDING_STEPS STEP_READ &&& 0xfc

// Passes are 1 .. 8: tables match four bits of the field.
#define PASS_NUMBER(thc) thc.switch_pass[3:0]

struct metadata_t {
    bit<2> role;
    bit<2> service;
    bit<3> shape;
    bit<2> job;
    bit<2> sender;
    bit<3> work;
    bit<2> use;
    bit<1> stale;
    bit<2> reply;
    bit<2> delivery;
    bit<1> rewritten;        // the IPv4 header needs a new checksum
    bit<1> is_result;        // the replicas go to workers (else: a flood)
    bit<8> reason;
    port_t home_port;        // recirculation port of the home pipe
    @field_list(0)
    port_t output_port;      // in v1model kept over a recirculation: the port through which the packet comes back
    port_t reply_port;       // towards the sender
    bit<16> group;           // multicast group of the job, or of a flood
    bit<16> slot_index;      // of all jobs together
    bit<16> index;           // of this pass's word in the sum registers
    bit<8> step;             // thc.switch_step of this pass; the header's is the next pass's already
    bit<8> quorum;
    bit<32> worker_bit;
    bit<32> other_racks;     // workers of other racks, which are not missing here
    bit<32> order;           // partition and chunk: the same for all packets of a round (Admission)
    bit<32> found_order;     // order of the slot's version; zero if it is in another round
    bit<32> bitmap_before;   // workers in the version before this packet
    bit<32> seen;            // this worker's bit of it
    bit<8> finished;         // contributions that are through all their passes
    bit<8> missing;          // quorum - finished
    bit<8> minus_ones_1;     // minus the workers in byte 1 of bitmap_before
    bit<8> minus_ones_2;
    bit<8> minus_ones_3;
    bit<8> absent;           // workers - contributions
    bit<8> room;             // quorum - workers in bitmap_before; zero or negative: closed
}

#endif  // THC_METADATA_P4_
