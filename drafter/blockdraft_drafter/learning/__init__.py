"""Learning while serving, as far as it concerns the drafter.

Drafter and trainer share `samples` and `versions`, on disk (`records`), and the test whether one
version gains more than another, `comparison`. Read `start` (the version that serves at first),
`serving` (its replacement), `rehearsal` (a version is loaded where nobody is hurt), `probation`
(the version before returns), `observer` (the sequences of each stream), `recorder` (sequences on
their way to disk), `metrics`.
"""
