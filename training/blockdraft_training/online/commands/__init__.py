"""What `blockdraft learn` can be asked for."""
