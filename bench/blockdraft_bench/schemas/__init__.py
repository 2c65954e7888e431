"""`bench schemas`: completions that JSON Schemas restrict, and what restricting them costs.

Read `sample` (the schemas), `grammar` (a schema as a grammar), `random_answers` (completions made
by no model, and the time of their masks), `served` (those of a service), `validity` (whether a
completion is valid), `measure` (all together, by family).
"""
