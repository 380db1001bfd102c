// Widths and constants of Tofino 1.
#ifndef _TOFINO1_P4_SPECS_
#define _TOFINO1_P4_SPECS_

#include <core.p4>

#define QUEUE_ID_WIDTH      5
#define PKTGEN_APP_ID_WIDTH 3
#define MIRROR_TYPE_WIDTH   3
#define MIRROR_ID_WIDTH     10

#include "tofino_types.p4"

const bit<32> PORT_METADATA_SIZE = 32w64;   // bits before the packet, after the ingress intrinsic metadata

#endif  // _TOFINO1_P4_SPECS_
