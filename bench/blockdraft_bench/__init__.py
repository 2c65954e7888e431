"""`blockdraft bench`: what drafting gains, on which data, with what certainty.

Read `common` first: its docstring says what a measurement is. There is one folder a measurement.
`acceptance`, `decode`, `serve`, `peers`, `int8` and `kflat` run something: they use `engine` and
import no other measurement. `scaling` predicts from the results of two of them, and `report`
shows the results of all on one page. `command` finds them by name.
"""
