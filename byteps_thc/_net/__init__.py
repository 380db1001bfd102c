"""Transport of norms, codes and sums. Nothing here knows engines or front ends.

A Transport (transport.py) makes a Transfer for each piece of a gradient, and counts its bytes. Three routes:

    rank_messages     among the ranks: all-to-all of codes, all-gather of averages, over gloo or NCCL
    servers           to thc-ps or a switch, over kernel UDP or DPDK (session), with several servers over failover
    byteps_servers    to BytePS's own servers, over byteps
"""
