"""What every serving process shares.

Read `process` (bind, load, serve, drain, stop) and `status` (errors as callers see them) first.
`settings/` is what each process is told, `configuration/` how it is told: by flags, variables and
files. `channel` is how processes are connected and how long they wait before they try again,
`credentials` the keys and certificates by which they know each other, `shared_memory` what two of
them on one host share. `event_loop` loads beside the event loop and tells how long that is held,
`logs` is what they log, and `tpu` says which chips of a host belong to which of them. Nothing here
imports the packages that use it.
"""


def version() -> str:
    """Return the version of the installed package; "unknown" in a bare checkout."""
    # Imported here: it is slow, and every process imports this package.
    from importlib import metadata

    try:
        return metadata.version("blockdraft")
    except metadata.PackageNotFoundError:
        return "unknown"
