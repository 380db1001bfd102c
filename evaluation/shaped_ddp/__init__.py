"""Steps of DDP on hosts of a shaped network (shaped_network.py), scheme by scheme in turn.

ranks.py starts the ranks and reads their results. steps.py has the parts of a rank's program.
"""
