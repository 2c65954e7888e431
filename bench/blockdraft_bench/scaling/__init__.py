"""`bench scaling`: speed-up predicted from measured acceptance and costs.

Read `settings`, `decay` (acceptance along a block as two numbers), `prediction` (speed-up from
it), `inputs` (what is read from `acceptance.json` and `kflat.json`), `lengths`, then `report` and
`figure`. It imports the reports of `acceptance` and `kflat`, nothing else of them, and runs no
model.
"""
