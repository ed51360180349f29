"""Llama 1 to 3.x, and what came with their config: SmolLM2 for one. Touvron et al. 2023, Dubey et al. 2024."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.llama import LlamaConfig, LlamaModel
from weight_mapping import hf_decoder
from weight_mapping.family import COUNT, FLAG, POSITIVE, Check, Family, Key, Layout
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rope import gguf_rope_keys
from weight_mapping.rules import Drop, PairsToHalves, Table, rename


def hf(config: LlamaConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it."""
    here, there = HERE + "self_attn.", THERE + "attn."
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            rename(here + "q_proj.{part}", there + "q_proj.{part}"),
            rename(here + "k_proj.{part}", there + "k_proj.{part}"),
            rename(here + "v_proj.{part}", there + "v_proj.{part}"),
            rename(here + "o_proj.{part}", there + "o_proj.{part}"),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


def gguf(config: LlamaConfig) -> Table:
    """GGUF's names. Its q and k rows are in the paper's order, the components that turn together side by side."""
    q, k = PairsToHalves(config.n_heads), PairsToHalves(config.n_kv_heads)
    here, there = "blk.{layer}.", "layers.{layer}."
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            rename("token_embd.weight", "embed.weight"),
            rename("output.weight", "lm_head.weight"),  # a tied head is not stored
            rename(here + "attn_norm.weight", there + "attn_norm.weight"),
            rename(here + "attn_q.{part}", there + "attn.q_proj.{part}", q),
            rename(here + "attn_k.{part}", there + "attn.k_proj.{part}", k),
            rename(here + "attn_v.{part}", there + "attn.v_proj.{part}"),
            rename(here + "attn_output.{part}", there + "attn.o_proj.{part}"),
            rename(here + "ffn_norm.weight", there + "ffn_norm.weight"),
            rename(here + "ffn_gate.{part}", there + "ffn.gate_proj.{part}"),
            rename(here + "ffn_up.{part}", there + "ffn.up_proj.{part}"),
            rename(here + "ffn_down.{part}", there + "ffn.down_proj.{part}"),
            rename("output_norm.weight", "norm.weight"),
        ),
        drops=(
            Drop(
                source="rope_freqs.weight",
                reason="divisors of RoPE's frequencies, all 1",
                only_if=1.0,
                otherwise="divides RoPE's frequencies as llama3's scaling does, whose parameters GGUF does not hold: "
                "not supported yet, take the HF checkpoint",
            ),
        ),
    )


_DEFAULTS = {
    "n_kv_heads": lambda f: f["n_heads"],
    "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
    "activation": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tied_head": False,
    "rope.theta": 10000.0,
    "rope.type": "default",
    "rope.pairing": "halves",
}

FAMILY = Family(
    architecture="LlamaForCausalLM",
    config=LlamaConfig,
    model=LlamaModel,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
    ),
    layouts={
        "hf": Layout(
            names=("llama",),
            keys={
                **hf_decoder.KEYS,
                "num_key_value_heads": Key("n_kv_heads", COUNT),
                "head_dim": Key("d_head", COUNT),
                "mlp_bias": Key("mlp_bias", FLAG),
            },
            only={
                "pretraining_tp": (1,),  # more computes each projection in slices, which rounds otherwise
                "rope_interleaved": (False,),
            },
            harmless=("is_llama_config",),
            defaults={
                "vocab_size": 32000,
                "d_model": 4096,
                "d_ff": 11008,
                "n_layers": 32,
                "n_heads": 32,
                "max_positions": 2048,
                "norm_eps": 1e-6,
                **_DEFAULTS,
            },
        ),
        "gguf": Layout(
            names=("llama",),
            keys={
                "llama.vocab_size": Key("vocab_size", COUNT),
                "llama.embedding_length": Key("d_model", COUNT),
                "llama.feed_forward_length": Key("d_ff", COUNT),
                "llama.block_count": Key("n_layers", COUNT),
                "llama.attention.head_count": Key("n_heads", COUNT),
                "llama.attention.head_count_kv": Key("n_kv_heads", COUNT),
                "llama.attention.key_length": Key("d_head", COUNT),
                "llama.attention.value_length": Key("d_head", COUNT),
                "llama.rope.dimension_count": Key("d_head", COUNT),
                "llama.context_length": Key("max_positions", COUNT),
                "llama.attention.layer_norm_rms_epsilon": Key("norm_eps", POSITIVE),
                **gguf_rope_keys("llama"),
            },
            only={
                "llama.expert_count": (0,),
                "llama.expert_used_count": (0,),
                "llama.rope.scaling.attn_factor": (1.0,),
            },
            harmless=("llama.tensor_data_layout", "llama.rope.scaling.finetuned"),
            defaults=_DEFAULTS,
            tensors_say={
                "vocab_size": lambda c: c.shape("token_embd.weight")[0],
                "tied_head": lambda c: "output.weight" not in c,
                "attention_bias": lambda c: "blk.0.attn_q.bias" in c,
                "mlp_bias": lambda c: "blk.0.ffn_up.bias" in c,
            },
        ),
    },
    tables={"hf": hf, "gguf": gguf, "transformers5": hf},
)
