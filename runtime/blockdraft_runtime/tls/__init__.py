"""How processes are known: `certificate` reads and checks one, `peers` is mutual TLS between hosts.

Certificates are read again when they change.
"""
