"""Verifier and drafter in this process, as a function from requests to answers.

Read `decoding` (the engine), `in_process` (its link to the drafter, without a wire), `loading`
(models and their room), `samples` (what is asked, and the loop that asks), `sample_decoder` (one
sample by several decoders in turn), `teacher_forcing` (logits over a given answer). Where no model
is wanted there are `instant_drafter` (drafts without computing), `instant_runner` (a target that
does) and `timed_link` (how long the calls of a link took). It must not import a measurement.
"""
