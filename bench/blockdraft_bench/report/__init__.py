"""`bench report`: one page and one figure of any number of measurements.

Read `section` (how a measurement takes part), one of the modules named after a measurement,
`sources` (which files are read and how), `page`, `published` (numbers of other people). A new
measurement is one module here and its line in `sources.SECTIONS`.
"""
