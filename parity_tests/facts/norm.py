"""R1, "LayerNorm / RMSNorm"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, default, gives
from parity_tests.facts.subjects import biases, close, filled, hub_config, internal, model, values
from parity_tests.harness.lens import Lens


def rms(family: str, width: int, eps: float, dtype: torch.dtype = torch.float64) -> Any:
    """A family's RMSNorm with weights that are not 1."""
    norm = internal(family, {"T5": "T5LayerNorm"}.get(family, f"{family}RMSNorm"))(width, eps)
    norm.weight.data = 1 + values("norm weight", width).to(dtype) / 4
    return norm


def llama_norm() -> bool:
    norm, x = rms("Llama", 12, 0.01), values("x", 3, 12) / 8
    with torch.no_grad(), Lens():
        return close(norm(x), seed.rms_norm(x, norm.weight, 0.01))


def bf16() -> tuple[Any, Tensor]:
    return rms("Llama", 64, 1e-6, torch.bfloat16), (values("x", 16, 64) / 3).bfloat16()


def widened() -> bool:
    """bfloat16 in: the sum of squares and the quotient in float32, rounded back before the weight, bfloat16 out."""
    norm, x = bf16()
    wide = x.float()
    quotient = wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + 1e-6)
    narrow = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6)
    assert not torch.equal(quotient.bfloat16(), narrow), "float32 makes no difference here"
    return torch.equal(norm(x), norm.weight * quotient.bfloat16())


def same_as_t5() -> bool:
    """Bit for bit, in float32 and in bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        x = (values("x", 16, 64) / 3).to(dtype)
        llama, t5 = (rms(family, 64, 1e-6, dtype)(x) for family in ("Llama", "T5"))
        assert torch.equal(llama, t5), f"they differ in {dtype}"
    return True


LLAMAS = ("Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.2-1B")
NORM = "R1, LayerNorm / RMSNorm"


def mean_matters() -> bool:
    x, layer, root = values("x", 3, 12), filled(nn.LayerNorm(12, eps=1e-9)), rms("Llama", 12, 1e-9)
    with torch.no_grad(), Lens():
        assert close(layer(x + 3), layer(x), bar=1e-6), "LayerNorm sees the mean"
        return not biases(root) and not torch.allclose(root(x + 3), root(x), rtol=0.1)


NORM_FACTS = (
    Fact(
        id="layer-norm-formula",
        place=NORM,
        quote="LayerNorm(x) = (x - Mean(x)) * rsqrt(Var(x) + eps) * weight + bias",
        says="torch's LayerNorm computes that over the last axis, eps inside the root, Var divided by d",
        check=lambda: close(
            (norm := filled(nn.LayerNorm(12, eps=0.01)))(values("x", 3, 12) / 8), seed.layer_norm(values("x", 3, 12) / 8, norm)
        ),
    ),
    Fact(
        id="rms-norm-formula",
        place=NORM,
        quote="RMSNorm(x) = x * rsqrt(Mean(x^2) + eps) * weight",
        says="LlamaRMSNorm computes that, eps inside the root",
        check=llama_norm,
    ),
    Fact(
        id="rms-norm-no-mean",
        place=NORM + " · R2, 3.3",
        quote="RMSNorm 去掉了减均值和 bias",
        says="RMSNorm has no bias and takes off no mean: a constant added to x changes it (LayerNorm: not)",
        check=mean_matters,
    ),
    Fact(
        id="rms-norm-float32",
        place=NORM,
        quote="HF LlamaRMSNorm 先转 float32 计算,再转回原 dtype",
        says="LlamaRMSNorm computes in float32 and returns the dtype that it was given",
        check=widened,
    ),
    Fact(
        id="rms-norm-t5",
        place=NORM,
        quote="与 T5LayerNorm 等价",
        says="It equals T5LayerNorm, bit for bit in float32 and bfloat16",
        check=same_as_t5,
    ),
    Fact(
        id="eps-torch",
        place=NORM,
        quote="eps: PyTorch LayerNorm 默认 1e-5",
        says="torch's LayerNorm has eps 1e-5 by default",
        check=gives(1e-5, lambda: nn.LayerNorm(3).eps),
    ),
    Fact(
        id="eps-bert",
        place=NORM,
        quote="BERT 为 1e-12",
        says="BERT's eps is 1e-12, and its LayerNorms have it",
        check=lambda: default("Bert", "layer_norm_eps") == 1e-12
        and {m.eps for m in model("Bert").modules() if isinstance(m, nn.LayerNorm)} == {1e-12},
    ),
    Fact(
        id="eps-llama",
        place=NORM,
        quote="Llama 的 rms_norm_eps 为 1e-6",
        says="Llama's rms_norm_eps is 1e-6, and its norms have it",
        check=lambda: default("Llama", "rms_norm_eps") == 1e-6 and model("Llama").norm.variance_epsilon == 1e-6,
    ),
    Fact(
        id="eps-llama-published",
        place=NORM,
        quote="Llama 的 rms_norm_eps 为 1e-6",
        says="Every published Llama has rms_norm_eps 1e-6",
        check=lambda: {hub_config(name)["rms_norm_eps"] for name in LLAMAS} == {1e-6},
        changed=Changed(
            now="that is the configuration's default (and Llama 1's); Llama 2 and 3 are published with 1e-5",
            check=lambda: {hub_config(name)["rms_norm_eps"] for name in LLAMAS} == {1e-5},
        ),
    ),
)


FACTS = (*NORM_FACTS,)
