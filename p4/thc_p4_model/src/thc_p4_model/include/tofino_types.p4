// Types both Tofino generations share; the widths that differ come from tofino<N>_specs.p4.
#define PORT_ID_WIDTH            9
#define MULTICAST_GROUP_ID_WIDTH 16
#define RESUBMIT_TYPE_WIDTH      3
#define DIGEST_TYPE_WIDTH        3
#define REPLICATION_ID_WIDTH     16
#define L1_EXCLUSION_ID_WIDTH    16
#define L2_EXCLUSION_ID_WIDTH    9

typedef bit<PORT_ID_WIDTH>            PortId_t;           // pipe in the upper 2 bits, port of the pipe below
typedef bit<MULTICAST_GROUP_ID_WIDTH> MulticastGroupId_t;
typedef bit<QUEUE_ID_WIDTH>           QueueId_t;
typedef bit<MIRROR_TYPE_WIDTH>        MirrorType_t;
typedef bit<MIRROR_ID_WIDTH>          MirrorId_t;
typedef bit<RESUBMIT_TYPE_WIDTH>      ResubmitType_t;
typedef bit<DIGEST_TYPE_WIDTH>        DigestType_t;
typedef bit<REPLICATION_ID_WIDTH>     ReplicationId_t;
typedef bit<L1_EXCLUSION_ID_WIDTH>    L1ExclusionId_t;
typedef bit<L2_EXCLUSION_ID_WIDTH>    L2ExclusionId_t;
typedef error                         ParserError_t;

#define DEVPORT_PIPE_MASK  0x180
#define DEVPORT_PIPE(port) (port)[8:7]
#define DEVPORT_PORT_MASK  0x7f
#define DEVPORT_PORT(port) (port)[6:0]
