"""The `blockdraft` command."""
