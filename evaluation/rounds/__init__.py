"""Rounds of one partition on separate hosts: the time of compressing, sending, adding and decompressing.

schemes.py has the compared schemes; decoding_server.py is the server that decompresses, a program of the evaluation and
not thc-ps; worker.py is a worker's side of both; process.py runs either, commanded by bed.py, which has the clock, the
links and thc-ps; parts.py measures the same work alone and computes rounds at other rates.
"""
