"""`bench acceptance`: how many tokens a verification gains, by dataset and temperature.

Read `command` (settings), `measure` (decoding), `statistics` (what is summed up), `report` (what is
said of it), `figure`. It must not import another measurement.
"""
