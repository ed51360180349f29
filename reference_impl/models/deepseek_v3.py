"""DeepSeek-V3. R1, "DeepseekV3Layer" and "LlamaModel"; DeepSeek-AI 2024."""

from dataclasses import dataclass

from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.ffn import GatedFFN
from reference_impl.mla import MLA
from reference_impl.moe import DeepSeekMoE, Experts, GroupedRouter
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig


@dataclass(frozen=True, kw_only=True)
class DeepseekV3Config:
    """What V3, R1 and V3.1 vary. Sizes are counts of components; `d_ff_expert` is `moe_intermediate_size`."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_dense_layers: int
    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    d_nope: int
    d_rope: int
    d_v: int
    d_ff: int
    d_ff_expert: int
    n_experts: int
    n_shared_experts: int
    top_k: int
    n_groups: int
    top_groups: int
    normalised: bool
    scaling: float
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    attention_dropout: float
    activation: str
    tied_head: bool


class DeepseekV3Layer(PreNormLayer):
    """z = x + MLA(RMSNorm(x)); y = z + DeepSeekMoE(RMSNorm(z)), or GatedFFN in the first layers."""

    def __init__(self, config: DeepseekV3Config, layer: int):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attn = MLA(
            d_model=config.d_model,
            n_heads=config.n_heads,
            q_lora_rank=config.q_lora_rank,
            kv_lora_rank=config.kv_lora_rank,
            d_nope=config.d_nope,
            d_rope=config.d_rope,
            d_v=config.d_v,
            bias=config.attention_bias,
            dropout=config.attention_dropout,
            mscale=config.rope.scaling.score_factor(),
            pairing=config.rope.pairing,
        )
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        dense = layer < config.n_dense_layers
        self.ffn = _gated(config, config.d_ff) if dense else _mixture(config)


def _gated(config: DeepseekV3Config, d_ff: int) -> GatedFFN:
    return GatedFFN(d_model=config.d_model, d_ff=d_ff, bias=False, activation=config.activation)


def _mixture(config: DeepseekV3Config) -> DeepSeekMoE:
    return DeepSeekMoE(
        router=GroupedRouter(
            d_model=config.d_model,
            n_experts=config.n_experts,
            top_k=config.top_k,
            n_groups=config.n_groups,
            top_groups=config.top_groups,
            normalised=config.normalised,
            scaling=config.scaling,
        ),
        experts=Experts(
            d_model=config.d_model,
            d_ff=config.d_ff_expert,
            n_experts=config.n_experts,
            activation=config.activation,
        ),
        shared=_gated(config, config.d_ff_expert * config.n_shared_experts),
    )


class DeepseekV3Model(Decoder):
    """LMHead(RMSNorm(DeepseekV3Layer^N(TokenEmbedding(ids)))), with attention expanded, or absorbed when told so."""

    def __init__(self, config: DeepseekV3Config):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[DeepseekV3Layer(config, layer) for layer in range(config.n_layers)],
            norm_eps=config.norm_eps,
            rope=config.rope,
            tied_head=config.tied_head,
        )
        self.config = config

    def absorb(self, absorbed: bool = True) -> "DeepseekV3Model":
        """Choose the form in which attention runs; the results are the same."""
        for module in self.modules():
            if isinstance(module, MLA):
                module.absorbed = absorbed
        return self
