"""`bench link`: what the link between verifier and drafter costs, without a model.

Read `drafter` (a process that answers at once), `exchange` (the verifier's side of one stream),
`measure` (the ways between them, and all points in rounds).
"""
