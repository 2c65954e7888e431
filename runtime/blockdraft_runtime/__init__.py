"""What every serving process shares.

Read `process` (bind, load, serve, drain, stop) and `status` (errors as callers see them) first;
`undecodable` tells a caller of bytes that are no message.
`settings/` is what each process is told, `configuration/` how it is told: by flags, variables and
files. `channel` holds the options of the connections between processes, `tls` their
certificates, `backoff` the pauses before they try again; `reloaded` reads files again when they
change; `loading` loads beside the event loop, `held_loop` tells how long that is held; `debug`
shows a process from inside; `logs`, `memory` and `version` are small services.
`tpu_host` and `tpu_split` say which chips of a host belong to which process. Nothing here imports
the packages that use it.
"""
