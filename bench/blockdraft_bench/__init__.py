"""`blockdraft bench`: what drafting gains, on which data, with what certainty.

One folder a measurement: `acceptance`, `decode`, `serve`, `peers`, `int8`, `kflat`, `scaling`;
`report` shows the results of all on one page. `common` is what they share, `engine` decodes in
this process. `report` may read the results of all others.
"""
