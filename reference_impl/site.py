"""Names for values that no module returns."""

from torch import nn


class Site(nn.Identity):
    """An identity with a name: `p = self.probs(p)` lets a forward hook on `…attn.probs` read `p`, and changes nothing."""
