"""`bench serve`: a service under load, and what learning meanwhile costs.

Read `settings` (what it is told), `record` (what a run is), `generator` (closed and open loop),
`service` (what is pressed, with which prompts, and its trainer, which learns or stands still),
`measure` (the runs), `summary` (their arithmetic and tables).
"""
