"""Code that all serving processes share.

Read `process` (bind, load, serve, drain, stop), `status` (errors as callers see them) and
`field_checks` (requests that are refused) first.
`settings/` defines the settings of each process; `configuration/` reads them from flags, variables
and files. `channel` has the gRPC options of connections and the pauses between retries,
`credentials` reads keys and certificates, `shared_memory` maps memory that two processes of one
host share. `event_loop` runs work beside the event loop and measures how long that is held, `logs`
configures logging, and `tpu` divides a host's chips among the processes. Nothing here imports the
packages that use it.
"""


def version() -> str:
    """Return the version of the installed package; "unknown" in a bare checkout."""
    # Imported here: it is slow, and every process imports this package.
    from importlib import metadata

    try:
        return metadata.version("blockdraft")
    except metadata.PackageNotFoundError:
        return "unknown"
