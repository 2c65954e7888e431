"""Who is let in, and how much of the service each caller may have.

`tenants` reads the file of keys, `auth` checks a call's key, `admission` bounds what is held at
once, for all and for each tenant. `files` is what is read, the server's certificate with it,
`keys_command` makes keys. Nothing here knows of verifiers.
"""
