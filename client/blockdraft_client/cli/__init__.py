"""The `blockdraft` command.

Read `main` first: it finds the module of a subcommand, by name. `generate`, `chat`, `health`,
`models`, `debug`, `version` and `demo` are subcommands of the client; those that serve, train and
measure are in their own packages. Subcommands share `options` (flags), `output` (JSON, figures
and exit codes). `demo_report` is the arithmetic of `demo`, `local_server` runs the service for it.
"""
