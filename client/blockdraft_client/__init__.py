"""The client SDK and the `blockdraft` command."""
