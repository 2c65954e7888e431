"""Learning while serving, as far as it concerns the drafter.

Drafter and trainer share `samples` and `versions`, on disk. Read `recorder` (sequences
on their way to disk), `comparison` (whether one version gains more than another), `probation`
(the version before returns), `rehearsal` (a version is loaded where nobody is hurt), `learner` (the
learning of each stream, and the weights that draft), `start` (the version that serves at first),
`metrics`.
"""
