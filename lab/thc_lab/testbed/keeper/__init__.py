"""What runs on each host of a testbed: it starts processes, keeps their output and exit status, and ends them.

Everything is in one folder of the host, so that `up`, `run`, `status`, `logs` and `down` may be separate commands, from
anywhere, and a command that was killed loses nothing. Only the standard library is imported.
"""
