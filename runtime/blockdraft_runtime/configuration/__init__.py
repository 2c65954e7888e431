"""One definition for every setting: how a frozen dataclass becomes a command line.

A field `max_waiting: int = setting(256, "requests that may wait", minimum=0)` of the settings of
`blockdraft server` is its flag `--max-waiting` with this help, its variable
BLOCKDRAFT_SERVER_MAX_WAITING, its key `max-waiting` in section `[server]` of the file that
`--config` names, and its row in docs/configuration.md. A flag wins over a variable, a variable
over the file, the file over the default. A command uses it like this:

    CONFIGURATION = Configuration("server", ServerSettings)

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        CONFIGURATION.add_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        settings = CONFIGURATION.read(args)  # a bad value ends the process like a bad flag
        ...

Read `definition` (what a field says), `values` (the settings of a dataclass, as texts and back),
`command` (flags, variables and file of one command). Nothing but the standard library is imported
here, and of that only what is quick.
"""
