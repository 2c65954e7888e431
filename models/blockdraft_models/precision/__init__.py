"""Which element type a target is served in, where the user leaves that open.

`serving` decides. On CPU it depends on the processor, so `probe` times it once; `forms` tries how
that processor multiplies exactly and fast. `kept` keeps what was found for the processes that start
beside this one, and after it.
"""
