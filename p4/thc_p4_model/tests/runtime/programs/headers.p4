// Headers of the test programs: a command byte selects the treatment of the packet.
#ifndef TEST_HEADERS_P4_
#define TEST_HEADERS_P4_

header command_h {
    bit<8>  command;
    bit<8>  index;
    bit<8>  passes;
    bit<8>  seen;       // the program's finding: an instance type, a replication id, a register
    bit<32> value;
}

struct headers_t {
    command_h command;
}

#endif  // TEST_HEADERS_P4_
