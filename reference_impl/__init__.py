"""The mathematics: every block, layer and model of the two seed documents, in code that reads like their pseudo-code.

Written from the documents and the papers they cite. Needs torch, and jaxtyping for the shapes; nothing else.
The axis letters of all shapes stand in `reference_impl/README.md`.
"""
