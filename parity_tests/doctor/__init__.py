"""The doctor: damage to a trained checkpoint that parity cannot see, since both sides read the same wrong file.

`text` gives tokens, `reading` what a model loses on them. `mapping`, `orders`, `settings` and `departures` are the repairs of
a `patient`; `absences` say where damage lies that is none of these. `numbers` and `halves` are the witnesses that need no text.
`search` tries, `statistics` judges, `examination` is all of it, `glance` what shows at once, `report` says it.
"""
