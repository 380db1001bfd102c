"""Transport of norms, codes and sums, without engines and front ends.

Three routes:

    rank_messages     among the ranks: all-to-all of codes, all-gather of averages, over gloo or NCCL
    servers           to thc-ps or a switch, over kernel UDP or DPDK (session), with several servers over failover
    byteps_servers    to BytePS's own servers, over byteps
"""
