"""The shape of a drafter, in the formats in which drafters are published.

`dflash` and `eagle3` hold one dataclass each, `published` reads and writes `config.json`.
Nothing here imports another part of the drafter.
"""
