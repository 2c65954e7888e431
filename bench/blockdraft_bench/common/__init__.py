"""What measurements share.

The command of a measurement declares its settings, a dataclass, and a function from these and a
`Run` to an `Outcome`:

    CONFIGURATION = Configuration("bench NAME", MySettings)

    def measure(settings: MySettings, run: Run) -> Outcome:
        prepared = prepare(settings.prompts, settings.prompts.read())
        run.identify(...)                                     # settings that decide a result
        phase = run.phase("decoding", total=prepared.count)   # a progress bar
        store = run.store(AnswerKey, SampleAnswers)           # samples.jsonl, to resume from
        ...
        report = MyReport(**origin(run.commit), target=..., results=...)  # a dataclass, of `Report`
        return Outcome(report, page(caption, table(headings, rows)), {"": figure})

`run_measurement` calls it, writes NAME.json, NAME.md and NAME.png, and prints the first or the
second. Read in this order:

* `settings` (those that several have), `run` (the course of a measurement), `datasets` and
  `prompts` (what is asked; the only module here that imports jax);
* `record` (dataclasses as JSON), `store` (results on disk, to resume from), `provenance` (what
  every report says of its origin), `answers` (what decoding gives, and how it compares);
* `statistics` (an `Estimate` is a number with its interval and how many answers it rests on),
  `rounds` (several things measured in turn), `serving_process` (a process that serves this one),
  `process_time` (what processes have used), `markdown` (tables show an `Estimate` with both),
  `figure` (bars and curves).

It must not import the engine or a measurement.
"""
