"""Learning while serving: the process that makes a drafter better from what was served.

Read `learner` (the loop over all parts), `recorded` (recordings as rows with features), `start`
(where a candidate begins), `candidate` (its steps, computed by `learning_step`), `replay` and
`promotion` (whether it replaces the version that serves), `pace` (when it may compute). What it
says of itself is the journal that the drafter shows too: `blockdraft_drafter.learning.journal`.
"""
