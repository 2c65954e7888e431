"""Verifier and drafter in this process, as a function from requests to answers.

Read `decoding` (the engine), `in_process` (its link to the drafter, without a wire), `loading`
(models and their room), `sample_request` and `sample_decoder` (one sample, by every method in
turn), `teacher_forcing` (logits over a given answer). It must not import a measurement.
"""
