"""Learning while serving: the process that makes a drafter better from what was served.

Read `run` (the process), `learner` (one candidate after another), `start` (where each begins),
`traffic` (training samples as rows with features), `candidate` (its steps and its τ), `promotion`
(whether it replaces the version that serves), `pace` (when it may compute), `settings`. It keeps a
journal, which the drafter publishes as metrics: `blockdraft_drafter.learning.journal`.
"""
