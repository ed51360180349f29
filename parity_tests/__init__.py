"""Asserts that transformers computes what `reference_impl` says, and tells where, when and whether it matters if not."""
