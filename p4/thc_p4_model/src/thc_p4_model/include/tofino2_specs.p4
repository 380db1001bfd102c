// Widths and constants of Tofino 2.
#ifndef _TOFINO2_P4_SPECS_
#define _TOFINO2_P4_SPECS_

#include <core.p4>

#define QUEUE_ID_WIDTH      7
#define MIRROR_TYPE_WIDTH   4
#define MIRROR_ID_WIDTH     8
#define PKTGEN_APP_ID_WIDTH 4

#include "tofino_types.p4"

typedef MirrorType_t CloneId_t;
const bit<32> PORT_METADATA_SIZE = 32w192;  // bits before the packet, after the ingress intrinsic metadata

#endif  // _TOFINO2_P4_SPECS_
