"""Who is let in, and how much of the service each caller may have.

`tenants` reads the file of keys, `reloaded` reads files again when they change, `auth` checks a
call's key, `admission` bounds what is held at once, for all and for each tenant. `certificate` is
how callers know the server, `files` puts together what is read, `keys_command` makes keys. Nothing
here knows of verifiers.
"""
