"""Rounds of one partition on hosts of their own: who compresses, sends, adds and decompresses, and for how long.

schemes.py says what is compared; decoding_server.py is the server that decompresses, a program of the evaluation and
not thc-ps; worker.py is a worker's side of both; process.py runs either, as bed.py tells it, which has the clock, the
links and thc-ps; parts.py measures the same work alone and computes rounds at rates that cannot be had here.
"""
