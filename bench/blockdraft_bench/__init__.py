"""`blockdraft bench`: what drafting gains, on which data, with what certainty.

Read `common` first: its docstring says what a measurement is. There is one folder a measurement.
`acceptance`, `decode`, `serve`, `peers`, `int8`, `kflat` and `processor` run models, `link`,
`host`, `slice` and `door` what is around them: they use `engine` and import no other measurement.
`scaling` predicts from the results of two of them, and `report` shows the results of most on one
page. `command` finds them by name.

In a measurement, read `command` (its flags and its course), then `report` (the dataclass that
becomes its JSON file, and its Markdown), `figure` last. No such `report` needs JAX or matplotlib,
so that results are read without either.
"""
