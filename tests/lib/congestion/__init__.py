"""Averages by real workers and servers over links that carry less than is sent: bench_congestion.py and short tests.

control.py: how a program of workers is told to average. rank.py: a worker as a user has it. crowd.py: many small ones.
workers.py: starts them and compares what they report. ways.py: the networks. measuring.py: one row of the benchmark.
"""
