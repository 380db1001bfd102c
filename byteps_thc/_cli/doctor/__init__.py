"""What of byteps_thc works on this host, what is missing, and the command that mends it (`thc doctor`)."""
