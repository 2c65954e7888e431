"""Learning while serving, as far as it concerns the drafter.

`recordings` and `versions` are what drafter and trainer share: folders on disk, and nothing else.
"""
