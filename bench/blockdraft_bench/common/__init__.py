"""What measurements share.

A measurement is a function from its flags and a `Run` to an `Outcome`:

    def measure(args: argparse.Namespace, run: Run) -> Outcome:
        prepared = prepare(args, read_datasets(args.dataset, args.datasets_dir))
        run.identify(settings, versions(), hardware())        # all that decides a result
        store = run.store(AnswerKey, Answer)                  # samples.jsonl in the run's folder
        phase = run.phase("decoding", total=prepared.count)   # a progress bar
        for key in keys:
            store.get_or_measure(key, lambda: decode(key))    # what is there is not decoded again
            phase.advance()
        report = MyReport(**origin(), target=..., results=...)  # a dataclass, of `Report`
        return Outcome(report, page(caption, table(headings, rows)), {"": figure})

`run_measurement` calls it, writes NAME.json, NAME.md and NAME.png, and prints the first or the
second. Read in this order:

* `run` (the course of a measurement), `flags` (flags that several have), `datasets` and `prompts`
  (what is asked), `preparation` (tokenizer and prompts; the only module here that imports jax);
* `record` (dataclasses as JSON), `store` (results on disk, to resume from), `provenance` (what
  every report says of its origin), `answers` (what decoding gives);
* `statistics` (an `Estimate` is a number with its interval and how many answers it rests on),
  `markdown` (tables show an `Estimate` with both), `figure` (bars and curves).

It must not import the engine or a measurement.
"""
