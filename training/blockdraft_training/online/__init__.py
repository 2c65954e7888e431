"""Learning while serving: the process that makes a drafter better from what was served.

Read `run` (the process), `learner` (one candidate after another), `start` (where each begins),
`traffic` (recordings as rows with features), `candidate` (its steps and what it gains), `promotion`
(whether it replaces the version that serves), `pace` (when it may compute), `settings`. What it
says of itself is the journal that the drafter shows too: `blockdraft_drafter.learning.journal`.
"""
