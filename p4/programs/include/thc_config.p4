// Every size of the two programs, with the hardware reason for it.
#ifndef THC_CONFIG_P4_
#define THC_CONFIG_P4_

#define THC_CODES_PER_PASS 128  // 32 blocks of 4 codes: a packet's part in parser and PHV in one pass (64 bytes)
#define THC_PASSES 8            // 1024 codes per packet

// Words of a block's register. A Tofino stage has room for four registers of 32,768 words next to their lookup tables;
// a pipe that does all 8 passes has 32768 / 8 = 4096 versions, which is 2048 slots x 2.
#ifndef THC_BLOCK_WORDS
#define THC_BLOCK_WORDS 32768
#endif

// Versions of the home pipe's slot state: as many as the blocks hold when four pipes do two passes each.
#ifndef THC_VERSIONS
#define THC_VERSIONS 16384
#endif
#define THC_SLOTS (THC_VERSIONS / 2)

// Two codes of 4 bits are one byte: 256 entries are one exact-match SRAM way, the smallest size.
#define THC_LOOKUP_ENTRIES 256

#define THC_JOB_ENTRIES 512       // TCAM block depth; a job takes 3 entries and one per superseded epoch
#define THC_WORKER_ENTRIES 1024   // SRAM block depth; 32 jobs of 32 workers
#define THC_LEAF_ENTRIES 256      // least of a hash table; a leaf's job takes 6, for up to 32 jobs
#define THC_SERVICE_ENTRIES 16
#define THC_PORT_ENTRIES 512      // all values of a 9-bit port
#define THC_ROUTE_ENTRIES 512
#define THC_MAC_ENTRIES 4096
#define THC_REASONS 64

#endif  // THC_CONFIG_P4_
