"""`bench serve`: a service under load; with `--split`, what its three processes cost."""
