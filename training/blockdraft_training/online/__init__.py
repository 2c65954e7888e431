"""Learning while serving: the process that makes a drafter better from what was served.

Read `run` (the process), `learner` (one candidate after another), `parent` (the version where each
begins), `traffic` (training samples as rows with features), `candidate` (its steps and its τ),
`pace` (when it may compute), `journal` and `metrics` (how far it is), `settings`. Whether a
candidate is better says `comparison` of `blockdraft_drafter.learning`.
"""
