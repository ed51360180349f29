"""What the two seed documents describe: item by item, where it stands, and which tests show it.

R1 is "Attention 及各种变体" (attention and its variants), R2 "Transformer", by the example of LLaMA.
"""
