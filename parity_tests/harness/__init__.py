"""transformers' side, the float64 lens, traces, the comparison and its report."""
