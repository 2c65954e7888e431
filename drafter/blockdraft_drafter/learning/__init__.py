"""Learning while serving, as far as it concerns the drafter.

`recordings`, `versions` and `journal` are what drafter and trainer share, on disk. Read `recorder`
(sequences on their way to disk), `service_tau` (whether a version accepts what the one before it
did), `trials` (versions that nobody knows to be harmless), `learner` (what streams tell, and the
weights that draft), `start` (which version serves at first), `metrics`.
"""
