"""The doctor: damage to a trained checkpoint that parity cannot see, since both sides read the same wrong file.

`text` gives tokens, `reading` what a model loses on them; `mapping`, `settings` and `departures` are the repairs, `numbers` and
`halves` the witnesses that need no text; `search` tries, `statistics` judges, `report` says it.
"""
