"""Averages by real workers and servers over links that carry less than is sent: bench_congestion.py and short tests.

rows.py: links, workers and servers of each row of the target table. ways.py: the least time that a row can take.
rank.py: a worker as users run it. crowd.py: many small ones. control.py: how both are told to average. workers.py:
starts them and adds up their counters. shaped_rows.py, relayed_rows.py, frame_relay.py: the networks. tcp.py: a stream
beside. measuring.py: one row.
"""
