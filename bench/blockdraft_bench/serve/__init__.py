"""`bench serve`: a service under load; what learning, and what its three processes cost.

Read `settings` (what it is told), `load_level` and `request_record` (what a run is), `generator`
(closed and open loop), `trainer` (which learns or stands still), `measure` (the runs), `summary`
(their arithmetic); for the processes `split_measure` and `split`; `service` and `prompts` prepare;
then `report` and `figure`. Nothing here imports another measurement.
"""
