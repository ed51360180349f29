"""Mamba. Gu and Dao 2023."""

from dataclasses import replace

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.mamba import MambaConfig, MambaModel
from weight_mapping.family import COUNT, FLAG, POSITIVE, TEXT, Check, Family, Key, Layout
from weight_mapping.rules import Table, rename, tie

HERE, THERE = "backbone.layers.{layer}.", "layers.{layer}."


def hf(config: MambaConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it."""
    embedding, head = "backbone.embeddings.weight", "lm_head.weight"
    both = (rename(embedding, "embed.weight"), rename(head, "lm_head.weight"))
    here, there = HERE + "mixer.", THERE + "mixer."
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *((tie((embedding, head), "embed.weight"),) if config.tied_head else both),
            rename(HERE + "norm.weight", THERE + "norm.weight"),
            rename(here + "in_proj.{part}", there + "in_proj.{part}"),
            rename(here + "conv1d.{part}", there + "conv.{part}"),
            rename(here + "x_proj.weight", there + "x_proj.weight"),
            rename(here + "dt_proj.{part}", there + "dt_proj.{part}"),
            rename(here + "A_log", there + "a_log"),
            rename(here + "D", there + "d"),
            rename(here + "out_proj.{part}", there + "out_proj.{part}"),
            rename("backbone.norm_f.weight", "norm.weight"),
        ),
    )


RANK = replace(COUNT, says='a whole number above 0 or "auto"', absent=(None, "auto"))

FAMILY = Family(
    architecture="MambaForCausalLM",
    config=MambaConfig,
    model=MambaModel,
    checks=(Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),),
    layouts={
        "hf": Layout(
            names=("mamba",),
            keys={
                "vocab_size": Key("vocab_size", COUNT),
                "hidden_size": Key("d_model", COUNT),
                "d_model": Key("d_model", COUNT),  # what the hub's files call it as well
                "num_hidden_layers": Key("n_layers", COUNT),
                "n_layer": Key("n_layers", COUNT),  # so, too
                "expand": Key("expand", COUNT),
                "state_size": Key("d_state", COUNT),
                "conv_kernel": Key("conv_width", COUNT),
                "time_step_rank": Key("dt_rank", RANK),
                "layer_norm_epsilon": Key("norm_eps", POSITIVE),
                "use_bias": Key("bias", FLAG),
                "use_conv_bias": Key("conv_bias", FLAG),
                "hidden_act": Key("activation", TEXT),
                "residual_in_fp32": Key("wide_residual", FLAG),
                "tie_word_embeddings": Key("tied_head", FLAG),
                "tie_embeddings": Key("tied_head", FLAG),  # mamba_ssm's own name
            },
            only={
                "rms_norm": (True,),
                "ssm_cfg": (None, {}),
                # mamba_ssm's, for models that are not Mambas alone
                "d_intermediate": (0,),
                "attn_layer_idx": ([],),
                "attn_cfg": ({},),
            },
            harmless=(
                *"time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor".split(),  # training
                "rescale_prenorm_residual",  # its beginning, as those are
                *"use_mambapy use_associative_scan fused_add_norm pad_vocab_size_multiple".split(),  # how it is computed
                "d_inner",  # the hub's files have it beside intermediate_size, and nothing reads it
            ),
            defaults={
                "vocab_size": 50280,
                "d_model": 768,
                "n_layers": 32,
                "expand": 2,
                "d_state": 16,
                "conv_width": 4,
                "dt_rank": lambda f: -(-f["d_model"] // 16),
                "norm_eps": 1e-5,
                "bias": False,
                "conv_bias": True,
                "activation": "silu",
                "wide_residual": True,
                "tied_head": True,
            },
            implied={"intermediate_size": lambda c: c.d_inner},
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="backbone.",
)
