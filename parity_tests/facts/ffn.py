"""R1, "标准 FFN" and "GatedFFN / SwiGLU"."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Fact, default
from parity_tests.facts.subjects import (
    biases,
    close,
    filled,
    has,
    ids,
    internal,
    internals,
    model,
    sizes,
    values,
    watch,
)

# --- the standard FFN ---

X = values("activation", 200) * 2


def phi(x: Tensor) -> Tensor:
    """x * Phi(x), by erf."""
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gpt2_mlp() -> bool:
    (seen,) = watch(model("GPT2"), "h.0.mlp", input_ids=ids(5))
    return close(seen.y, seen.module.c_proj(gelu_tanh(seen.module.c_fc(seen.x))))


def torch_ff_block() -> bool:
    """Dropout(Linear2(Dropout(ReLU(Linear1(x))))) in training, from one state of the random generator."""
    layer = filled(nn.TransformerEncoderLayer(12, 3, 20, dropout=0.5, batch_first=True)).train()
    x = values("x", 2, 5, 12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = layer._ff_block(x)
        torch.manual_seed(0)
        inner = F.dropout(F.relu(layer.linear1(x)), 0.5)
        wanted = F.dropout(layer.linear2(inner), 0.5)
    assert (inner == 0).sum() > (F.relu(layer.linear1(x)) == 0).sum(), "nothing was dropped"
    return torch.equal(found, wanted)


def dropout_at_the_end() -> bool:
    mlp = internal("GPT2", "GPT2MLP")(40, internals("GPT2").GPT2Config(n_embd=24, resid_pdrop=0.5))
    mlp, x = filled(mlp), values("x", 2, 5, 24)
    assert sum(isinstance(m, nn.Dropout) for m in mlp.modules()) == 1, "there is another nn.Dropout"
    whole = mlp(x)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = mlp.train()(x)
    assert 0 < (dropped == 0).sum() < dropped.numel(), "nothing was dropped"
    return close(dropped, torch.where(dropped == 0, 0, 2 * whole))


FFN_FACTS = (
    Fact(
        id="ffn-formula",
        place="R1, 标准 FFN",
        quote="y = Dropout( LinearOut( GELU( LinearIn(x)",
        says="GPT2MLP computes LinearOut(GELU(LinearIn(x)))",
        check=gpt2_mlp,
    ),
    Fact(
        id="gpt2-one-dropout",
        place="R1, 标准 FFN",
        quote="GPT-2(GPT2MLP)只在最后有一个 Dropout",
        says="GPT2MLP has one dropout, at its end: training zeroes whole outputs and changes no other",
        check=dropout_at_the_end,
    ),
    Fact(
        id="torch-two-dropouts",
        place="R1, 标准 FFN",
        quote="PyTorch TransformerEncoderLayer._ff_block 是 Dropout(Linear2(Dropout(ReLU(Linear1(x)))))",
        says="_ff_block is Dropout(Linear2(Dropout(ReLU(Linear1(x))))): one behind the activation too",
        check=torch_ff_block,
    ),
    Fact(
        id="torch-relu",
        place="R1, 标准 FFN · R2, 2.2",
        quote="激活函数:原始 Transformer 为 ReLU",
        says="The activation of torch's layers is ReLU by default",
        check=lambda: torch.equal(nn.TransformerEncoderLayer(12, 3, 20).activation(X), X.clamp(min=0)),
    ),
    Fact(
        id="bert-gelu",
        place="R1, 标准 FFN",
        quote="BERT 为 gelu(erf 精确版)",
        says="BERT's is gelu, the exact one with erf",
        check=lambda: default("Bert", "hidden_act") == "gelu" and close(ACT2FN["gelu"](X), phi(X)),
    ),
    Fact(
        id="gpt2-gelu-new",
        place="R1, 标准 FFN",
        quote="GPT-2 为 gelu_new(tanh 近似版)",
        says="GPT-2's is gelu_new, the tanh approximation",
        check=lambda: default("GPT2", "activation_function") == "gelu_new" and close(ACT2FN["gelu_new"](X), gelu_tanh(X)),
    ),
    Fact(
        id="ffn-four-times",
        place="R1, 标准 FFN · R2, 2.2 · R2, 4.2",
        quote="d_ff 一般为 4×d_model",
        says="d_ff is 4 d_model in nn.Transformer, BERT and GPT-2",
        check=lambda: sizes(nn.TransformerEncoderLayer(512, 8).linear1) == (512, 4 * 512)
        and default("Bert", "intermediate_size") == 4 * default("Bert", "hidden_size")
        and model("GPT2").h[0].mlp.c_fc.weight.shape == (24, 4 * 24),
    ),
)


# --- GatedFFN / SwiGLU ---


def llama_mlp(family: str = "Llama") -> bool:
    (seen,) = watch(model(family), "layers.0.mlp", input_ids=ids(5))
    mlp = seen.module
    return close(seen.y, seed.gated(seen.x, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight))


def gated_parameters() -> float:
    """Of Llama-7B's MLP, against a plain FFN that is 4 d_model wide."""
    with torch.device("meta"):
        mlp = internal("Llama", "LlamaMLP")(internals("Llama").LlamaConfig())
        plain = nn.ModuleList([nn.Linear(4096, 4 * 4096, bias=False), nn.Linear(4 * 4096, 4096, bias=False)])
    counts = [sum(p.numel() for p in m.parameters()) for m in (mlp, plain)]
    assert len(list(mlp.parameters())) == 3, "there are not three matrices"
    return counts[0] / counts[1]


GATED_FACTS = (
    Fact(
        id="gated-formula",
        place="R1, GatedFFN / SwiGLU · R2, 3.3 · R2, 4.2",
        quote="y = LinearDown( SiLU(LinearGate(x)) … * LinearUp(x)",
        says="LlamaMLP computes LinearDown(SiLU(LinearGate(x)) * LinearUp(x))",
        check=llama_mlp,
    ),
    Fact(
        id="silu",
        place="R1, GatedFFN / SwiGLU · R2, 4.2",
        quote="SiLU(x) = x × sigmoid(x)(hidden_act=\"silu\")",
        says="SiLU(x) = x * sigmoid(x), and hidden_act is \"silu\"",
        check=lambda: default("Llama", "hidden_act") == "silu"
        and close(ACT2FN["silu"](X), seed.silu(X))
        and close(F.silu(X), seed.silu(X)),
    ),
    Fact(
        id="gated-parameters",
        place="R1, GatedFFN / SwiGLU",
        quote="有三个矩阵,为了与普通 FFN 参数量相当,d_ff 通常取 8/3×d_model 再取整",
        says="Three matrices of 8/3 d_model hold as much as two of 4 d_model (Llama-7B: within 1 %)",
        check=lambda: abs(gated_parameters() - 1) < 0.01,
    ),
    Fact(
        id="llama-7b-ff",
        place="R1, GatedFFN / SwiGLU",
        quote="如 Llama-7B 为 4096 -> 11008",
        says="Llama-7B's is 4096 -> 11008, which is 8/3 d_model up to the next multiple of 256",
        check=lambda: default("Llama", "hidden_size") == 4096
        and default("Llama", "intermediate_size") == 11008 == -(-8 * 4096 // 3 // 256) * 256,
    ),
    Fact(
        id="mlp-bias",
        place="R1, GatedFFN / SwiGLU",
        quote="mlp_bias=False,没有 bias",
        says="mlp_bias is False, and LlamaMLP has no bias",
        check=lambda: default("Llama", "mlp_bias") is False and not biases(model("Llama").layers[0].mlp),
    ),
    Fact(
        id="mlp-no-dropout",
        place="R1, GatedFFN / SwiGLU",
        quote="没有 bias,也没有 Dropout",
        says="LlamaMLP has no dropout: training computes what evaluation does",
        check=lambda: not has(model("Llama").layers[0].mlp, nn.Dropout)
        and torch.equal(
            (mlp := model("Llama").layers[0].mlp).train()(values("x", 1, 3, 24)), mlp.eval()(values("x", 1, 3, 24))
        ),
    ),
)

FACTS = (*FFN_FACTS, *GATED_FACTS)
