"""Verifier and drafter in one process, on the same devices.

A TPU chip belongs to one process, and not every host can be split between two. The drafter stays a
worker of its own, with the protocol of `drafter.proto`; what is gone is the wire in between.
"""
