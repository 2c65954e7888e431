"""`bench serve`: a service under load, and what learning meanwhile costs.

Read `settings` (what it is told), `record` (what a run is), `generator` (closed and open loop),
`service` (what is pressed, and with which prompts), `trainer` (which learns or stands still),
`measure` (the runs), `summary` (their arithmetic), `report` (page and figure).
"""
