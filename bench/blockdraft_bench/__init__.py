"""`blockdraft bench`: how much drafting gains, on which data, with what certainty.

`command` lists the measurements. Each is a function `measure` from its settings (`settings`,
`serve.settings`) and a `Run` to a `Result`: `decode`, `processor`, and the packages `kflat`,
`link`, `peers`, `schemas` and `serve`. What they share, in the order to read it:

* `run` (the course of a measurement), `result` (rows as JSON, Markdown and a picture), `store`
  (results on disk, to resume from), `provenance` (what a result was measured with);
* `datasets` and `prompts` (the prompts), `completions` (the results of decoding, and how they
  compare), `statistics` (an `Estimate` is a number with its interval and how many completions it
  rests on);
* `service` (a service that is started to be measured), `samples` (the loop that asks it).

`report` puts the pages of several results together; `errors` is what may go wrong.
"""
