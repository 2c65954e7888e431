"""`bench serve`: a service under load, and the cost of learning meanwhile.

Read `settings`, `record` (a run and its requests), `generator` (closed and open loop), `service`
(the service, its prompts, and its trainer, which learns or stands still), `measure` (the runs),
`summary` (their arithmetic and tables).
"""
