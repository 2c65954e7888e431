"""`bench link`: the cost of the link between verifier and drafter, without a model.

Read `drafter` (a process that responds at once), `exchange` (the verifier's side of one stream),
`measure` (the ways between them, and all points in rounds).
"""
