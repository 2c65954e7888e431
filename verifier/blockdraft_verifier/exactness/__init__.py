"""Whether all compiled steps round alike, so that speculation cannot change an answer.

`classes` says what that means and groups step shapes; it is pure Python. `self_test` runs the
steps of a target on the device at hand. `command` is `blockdraft verifier --self-test`. Nothing
here is imported by `device`.
"""
