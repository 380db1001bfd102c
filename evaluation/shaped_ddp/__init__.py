"""Steps of DDP on hosts of a shaped network (shaped_network.py), scheme by scheme in turn.

ranks.py: what starts the ranks and reads their results. steps.py: what a rank's program is made of.
"""
