// The controls of ThcIngress, within it.
PortRole() port_role;
PassRow() pass_row;
Service() service;
PacketCheck() packet_check;
JobCheck() job_check;
Admission() admission;
AggregationBlocks() blocks;
SlotCheck() slot_check;
Verdict() verdict;
Result() result;
Reply() reply;
NextPass() next_pass;
PassControl() pass_control;
Forwarding() forwarding;
