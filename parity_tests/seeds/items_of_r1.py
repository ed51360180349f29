"""R1, "Attention 及各种变体": its sections in their order."""

from __future__ import annotations

from parity_tests.seeds.record import Section, item

DECODERS = "{deepseek_v2,deepseek_v3,llama,mistral,mixtral,qwen2,qwen2_moe,qwen3,qwen3_moe}"
BOTH_SIDES = "{bart,marian,t5}"

ATTENTION = (
    Section(
        "R1",
        "MHA",
        ("attention:MHA",),
        (
            item("A1.torch", "as nn.MultiheadAttention gives it", "torch_layers.attention/self-*"),
            item("A1.bert", "as BERT's, which looks both ways", "blocks.block/bert/*/attn.{probs,mixed,o_proj}"),
            item("A1.gpt2", "as GPT-2's, which looks back", "blocks.block/gpt2/*/{attn.probs,attn}"),
            item("A1.both-sides", "as the encoders' of both-sided models", f"blocks.block/{BOTH_SIDES}/*/encoder.attn"),
            item(
                "A1.sum-of-heads",
                "the sum over heads is the concatenated form",
                "torch_layers.the_heads_outputs_add_up",
            ),
            item(
                "A1.causal-mask",
                "a later token changes nothing before it",
                "properties.a_later_token_changes_nothing_before_it",
            ),
            item(
                "A1.masks",
                "causal and padding masks",
                "blocks.block/{bert,gpt2}/*/mask",
                "torch_layers.attention/self-bool*",
            ),
            item(
                "A1.dropout",
                "attention dropout in training, with the same random numbers",
                "torch_layers.attention_in_training/*",
            ),
            item("A1.gradients", "its gradients", "torch_layers.gradients_of_attention/self-*"),
            item(
                "A1.no-order",
                "without positions it knows no order",
                "properties.attention_without_positions_knows_no_order",
            ),
        ),
    ),
    Section(
        "R1",
        "CrossAttention",
        ("attention:MHA", "mask:wait_k_mask"),
        (
            item("A2.torch", "as nn.MultiheadAttention over a memory", "torch_layers.attention/memory-*"),
            item(
                "A2.bert", "as BERT's crossattention", "blocks.block/bert/cross/cross.{keys,values,probs,mixed,o_proj}"
            ),
            item(
                "A2.gpt2",
                "as GPT-2's, q_attn and a c_attn of two",
                "blocks.block/gpt2/cross/{cross.keys,cross.probs,cross}",
            ),
            item(
                "A2.marian", "as a Marian decoder's, and its relatives'", f"blocks.block/{BOTH_SIDES}/*/decoder.cross"
            ),
            item(
                "A2.padding",
                "a mask over the padding of the memory",
                f"blocks.block/{BOTH_SIDES}/*/decoder.memory_mask",
            ),
            item("A2.lengths", "a memory of another length and width", "torch_layers.attention/wide_memory-*"),
            item("A2.wait-k", "the staircase of wait-k", "masks.*", "properties.wait_k_is_a_staircase"),
            item(
                "A2.cached-memory",
                "the memory's K and V are cached, and computed once",
                "seq2seq.the_source_is_read_once/*",
            ),
        ),
    ),
    Section(
        "R1",
        "MQA / GQA",
        ("attention:Attention",),
        (
            item("A3.one", "one head of keys for all", "blocks.block/llama/mqa/attn", "positions.one_key_head_*"),
            item("A3.between", "several heads of queries to one of keys", "blocks.block/llama/gqa/attn"),
            item("A3.all", "as many as queries: MHA", "blocks.block/llama/mha/attn"),
            item("A3.repeat", "Repeat is repeat_interleave over heads", "positions.repeat_is_repeat_interleave/*"),
            item("A3.sdpa", "as SDPA with enable_gqa", "positions.attention_is_sdpa_with_enable_gqa/*"),
            item("A3.cache", "the cache holds heads of keys, unrepeated", "cache.what_the_cache_holds/llama/*"),
        ),
    ),
    Section(
        "R1",
        "MLA",
        ("mla:MLA",),
        (
            item(
                "A4.attention",
                "as DeepSeek-V3's and V2's",
                "blocks.block/{deepseek_v2,deepseek_v3}/*/{attn.probs,attn}",
            ),
            item("A4.q-latent", "with q_lora_rank", "blocks.block/deepseek_v3/{base,yarn}/attn.q_norm"),
            item("A4.no-q-latent", "without", "blocks.block/deepseek_v3/no-q-lora/{attn,attn.probs}"),
            item("A4.pairs", "RoPE over pairs", "blocks.block/deepseek_v3/yarn/attn.rope_key"),
            item("A4.halves", "RoPE over halves", "blocks.block/deepseek_v3/half-rope/attn.rope_key"),
            item(
                "A4.mscale", "YaRN's mscale on the scores, and off", "blocks.block/deepseek_v3/{yarn,base}/attn.probs"
            ),
            item(
                "A4.mscale-lost",
                "a lost mscale is noticed",
                "deviations.caught/deepseek_v3/yarn/softmax_scale_without_mscale",
            ),
            item("A4.bias", "attention_bias", "blocks.block/deepseek_v3/biased/attn"),
            item(
                "A4.latent-eps",
                "latent norms keep eps 1e-6",
                "deviations.{live,caught}/deepseek_v3/*/latent_norms_use_rms_norm_eps",
            ),
            item(
                "A4.cache",
                "the cache holds the normed latent and the rotated key",
                "cache.what_the_cache_holds/deepseek_v3/*",
            ),
            item(
                "A5.equal",
                "absorbed equals expanded, at every length",
                "mla.absorbed_equals_expanded_at_every_length/*",
            ),
            item("A5.cached", "and over a cache, in pieces", "mla.absorbed_equals_expanded_over_a_cache/*"),
            item(
                "A5.split",
                "kv_b_proj taken apart into W_UK and W_UV",
                "mapping_deepseek.keys_and_values_of_every_head_*",
            ),
            item("A5.cache-576", "576 numbers a token a layer at the published size", "mla.the_cache_holds_576_*"),
        ),
    ),
    Section(
        "R1",
        "LlamaAttention",
        ("attention:Attention",),
        (
            item("A6.attention", "as Llama's", "blocks.block/llama/*/{attn.probs,attn}"),
            item("A6.order", "RoPE before the cache before Repeat", "blocks.block/llama/*/attn.keys"),
            item("A6.cache", "the cache holds rotated keys", "cache.what_the_cache_holds/llama/*"),
            item("A6.bias", "biases where the config has them", "blocks.block/llama/biased/attn"),
            item("A6.head-dim", "head_dim apart from d_model / heads", "blocks.block/llama/head_dim/attn"),
            item(
                "A6.order-of-tokens", "with RoPE the order is in the positions", "properties.with_rope_the_order_is_*"
            ),
        ),
    ),
    Section(
        "R1",
        "Qwen3Attention",
        ("attention:Attention", "models.qwen3:Qwen3Layer"),
        (
            item(
                "A7.qk-norm", "QK-norm before RoPE, on d_head", "blocks.block/{qwen3,qwen3_moe}/*/attn.{q_norm,k_norm}"
            ),
            item("A7.keys", "the normed keys are rotated and cached", "blocks.block/{qwen3,qwen3_moe}/*/attn.keys"),
            item("A7.eps", "with the config's eps", "deviations.live/qwen3/*/*eps*"),
            item("A7.qwen2-bias", "Qwen2's biases of q, k and v", "blocks.block/{qwen2,qwen2_moe}/*/attn"),
            item("A7.window", "the window from max_window_layers on", "blocks.block/{qwen2,qwen3}/window/mask"),
        ),
    ),
)

NETWORKS = (
    Section(
        "R1",
        "标准 FFN",
        ("ffn:FFN",),
        (
            item(
                "F1.relu", "ReLU, as torch's", "torch_layers.encoder_layer/*-relu-*", "blocks.block/t5/relu/encoder.ffn"
            ),
            item("F1.gelu", "the erf GELU, as BERT's", "blocks.block/bert/*/ffn.{dropout,out_proj}"),
            item("F1.gelu-tanh", "the tanh GELU, as GPT-2's", "blocks.block/gpt2/*/ffn"),
            item(
                "F1.dropout",
                "where each dropout sits",
                "torch_layers.layer_in_training/*",
                "training.dropout/{bert,gpt2}/*",
            ),
        ),
    ),
    Section(
        "R1",
        "GatedFFN / SwiGLU",
        ("ffn:GatedFFN",),
        (
            item("F2.swiglu", "as Llama's", "blocks.block/{llama,mistral,qwen2,qwen3}/*/ffn"),
            item("F2.gelu", "as T5's, gated by GELU", "blocks.block/t5/gated/encoder.ffn"),
            item("F2.bias", "mlp_bias", "blocks.block/llama/biased/ffn"),
            item("F2.eight-thirds", "the rule of 8/3", "facts.fact/{ffn,llama_notes}/*"),
        ),
    ),
    Section(
        "R1",
        "MoE",
        ("moe:MoE", "moe:SoftmaxRouter", "moe:Experts", "losses:load_balancing_loss"),
        (
            item(
                "F3.router",
                "as Mixtral's and Qwen's",
                "blocks.block/{mixtral,qwen2_moe,qwen3_moe}/*/ffn.router.{choice,weights}",
            ),
            item(
                "F3.experts",
                "the sum over the experts chosen",
                "blocks.block/{mixtral,qwen2_moe,qwen3_moe}/*/{ffn.experts,ffn}",
            ),
            item("F3.loops", "the same by scalar loops", "moe.the_mixture_is_the_sum_by_scalar_loops/*"),
            item("F3.two-orders", "softmax, top-k, renormalised = top-k, softmax", "moe.renormalised_weights_are_*/*"),
            item(
                "F3.fused",
                "experts as one tensor of three dimensions",
                "invariants.cast_alike/mixtral/*",
                "invariants.saved_and_loaded/mixtral/*",
            ),
            item("F3.jitter", "jitter in training, and not else", "moe.jitter_is_for_training_*"),
            item(
                "F3.balance",
                "the load-balancing loss, with and without a mask",
                "losses.load_balancing/*/*/{plain,padded}",
            ),
            item(
                "F3.balance-formula",
                "by its formula",
                "losses.it_is_the_formula_by_scalar_loops",
                "losses.it_is_least_where_*",
            ),
            item("F3.balance-total", "in the total loss", "training.loss/mixtral/*"),
        ),
    ),
    Section(
        "R1",
        "DeepSeekMoE",
        ("moe:DeepSeekMoE", "moe:GroupedRouter"),
        (
            item("F4.scores", "sigmoid scores", "blocks.block/deepseek_v3/base/ffn.router.logits"),
            item(
                "F4.bias-chooses",
                "the bias chooses, and does not weigh",
                "blocks.block/deepseek_v3/*/ffn.router.{choice,weights}",
            ),
            item(
                "F4.bias-noticed",
                "a bias that weighs is noticed",
                "deviations.caught/deepseek_v3/*/correction_bias_added_to_the_weights",
            ),
            item(
                "F4.groups",
                "groups by the sum of their two best",
                "deviations.caught/deepseek_v3/*/a_group_scored_by_its_best_expert_alone",
            ),
            item("F4.masked", "masked groups", "blocks.block/deepseek_v3/negative-bias/ffn.router.choice"),
            item(
                "F4.renormalised",
                "renormalised, and not",
                "blocks.block/deepseek_v3/{base,no-renorm}/ffn.router.weights",
            ),
            item("F4.scaling", "the scaling factor", "deviations.caught/deepseek_v3/*/*scaling*"),
            item("F4.shared", "more than one shared expert", "blocks.block/deepseek_v3/shared-2/ffn.shared"),
            item(
                "F4.dense-first",
                "the first layers are dense",
                "blocks.block/deepseek_v3/base/ffn",
                "layers.layer/deepseek_v3/base/layer",
            ),
            item(
                "F4.v2",
                "as V2 limits groups",
                "blocks.block/deepseek_v2/limited/ffn.router.choice",
                "moe.no_more_groups_*",
            ),
        ),
    ),
)

POSITIONS = (
    Section(
        "R1",
        "LayerNorm / RMSNorm",
        ("norm:LayerNorm", "norm:RMSNorm"),
        (
            item(
                "N1.layer-norm",
                "LayerNorm, as BERT's and GPT-2's",
                "blocks.block/bert/*/attn_norm",
                "blocks.block/gpt2/*/{attn_norm,norm}",
            ),
            item(
                "N1.rms-norm",
                "RMSNorm, as Llama's and T5's",
                "blocks.block/llama/*/{attn_norm,norm}",
                "blocks.block/t5/*/encoder.norm",
            ),
            item("N1.eps", "eps inside the root", "deviations.{live,caught}/llama/*/*eps*"),
            item("N1.rounding", "float32 inside, cast before the weight", "invariants.cast_alike/llama/*"),
            item(
                "N1.x-transformers",
                "x-transformers' RMSNorm is ours without eps",
                "package_twins.x_transformers_rms_norm_*",
            ),
            item("N1.no-eps", "and another where the input is small", "package_twins.without_eps_it_is_another_norm_*"),
        ),
    ),
    Section(
        "R1",
        "Sinusoidal PE",
        ("sinusoidal:sinusoidal_interleaved", "sinusoidal:sinusoidal_halves"),
        (
            item("P1.formula", "interleaved, by scalar loops", "positions.interleaved_by_the_formula/*"),
            item(
                "P1.scaled", "with the embedding times sqrt(d_model)", "positions.the_input_is_the_scaled_embedding_*"
            ),
            item(
                "P1.rotation",
                "PE(pos + k) = R(k) PE(pos)",
                "positions.a_step_of_k_positions_is_one_rotation/*",
                "properties.sinusoids_*",
            ),
            item("P2.table", "halves, as Marian's table", "positions.halves_are_marians_table_bit_for_bit/*"),
            item(
                "P2.looked-up", "frozen, and looked up by position", "blocks.block/marian/*/{encoder,decoder}.embedded"
            ),
            item("P2.past-the-table", "a position past it is a clear error", "positions.a_position_past_the_table_*/*"),
            item(
                "P2.one-permutation",
                "interleaved and halves are one permutation apart",
                "positions.interleaved_and_halves_*/*",
            ),
            item(
                "P2.scale-embedding",
                "scale_embedding, on and off",
                "blocks.block/marian/{base,unscaled}/encoder.embedded",
            ),
        ),
    ),
    Section(
        "R1",
        "可学习 PE",
        ("embedding:LearnedPositions",),
        (
            item("P3.gpt2", "as GPT-2's", "blocks.block/gpt2/*/positions"),
            item("P3.bert", "as BERT's, beside token types", "blocks.block/bert/*/embed.positions"),
            item("P3.bart", "as BART's, which begins at 2", "blocks.block/bart/*/{encoder,decoder}.embedded"),
            item("P3.cache", "positions go on from the cache", "learned_positions.positions_go_on_from_the_cache*"),
            item(
                "P3.past-the-table",
                "a position past the table is a clear error",
                "learned_positions.a_position_past_the_table_*",
            ),
        ),
    ),
    Section(
        "R1",
        "RoPE",
        ("position:RotaryEmbedding", "position:rotate_halves", "position:rotate_pairs", "rope_scaling:YaRN"),
        (
            item("P4.tables", "cos and sin, as every rotary family's", f"blocks.block/{DECODERS}/*/rope.{{cos,sin}}"),
            item("P4.forms", "halves, pairs, complex and block matrices agree", "positions.forms_of_rope_are_one/*"),
            item(
                "P4.formula",
                "angles by the formula, theta",
                "positions.angles_by_the_formula",
                "deviations.live/llama/*/*theta*",
            ),
            item("P4.permuting", "permuting q and k alike leaves the scores", "positions.permuting_q_and_k_alike_*"),
            item(
                "P4.relative",
                "only the relative position matters",
                "positions.only_the_relative_*/*",
                "properties.scores_depend_*",
            ),
            item("P4.rotation", "it is a rotation", "properties.rope_is_a_rotation"),
            item(
                "P4.package",
                "as rotary-embedding-torch's",
                "package_twins.rotate_queries_or_keys_*/*",
                "package_twins.interpolate_*",
            ),
            item("P4.linear", "linear scaling", f"blocks.block/{DECODERS}/rope-linear*/rope.cos"),
            item("P4.dynamic", "dynamic NTK", f"blocks.block/{DECODERS}/rope-dynamic*/rope.cos"),
            item("P4.yarn", "YaRN", f"blocks.block/{DECODERS}/rope-yarn*/rope.cos"),
            item("P4.llama3", "llama3", f"blocks.block/{DECODERS}/rope-llama3*/rope.cos"),
            item(
                "P4.longrope", "longrope", f"blocks.block/{DECODERS}/rope-longrope*/rope.cos", "positions.longrope_*/*"
            ),
        ),
    ),
)

LAYERS = (
    Section(
        "R1",
        "Token Mixing 与 Channel Mixing",
        (
            "metaformer:MetaFormer",
            "mixer:MixerLayer",
            "fourier:FourierMixing",
            "pooling:PoolMixing",
            "rwkv:TimeMixing",
            "mamba:MambaMixer",
            "mixer:RankMixerLayer",
            "mixer:TokenMixerLargeLayer",
            "mixer:SeparableConv",
        ),
        (
            item(
                "T1.layers", "every layer is built again from its two mixers", "mixer_form.layers_are_built_again_*/*"
            ),
            item("T1.channel", "a channel mixer has each token by itself", "mixer_form.a_channel_mixer_has_*/*"),
            item(
                "T1.mixers",
                "MLP-Mixer, RankMixer and TokenMixer-Large in it",
                "mixer_form.{mlp_mixer,rank_mixer,token_mixer_large}",
            ),
            item("T2.package", "as mlp-mixer-pytorch's", "package_twins.mixer_layer*"),
            item("T2.length", "another length is a clear error", "package_twins.a_mixer_of_another_length_*"),
            item("T3.mixer", "the real part of a DFT over both axes, as FNet's", "blocks.block/fnet/*/mixer"),
            item("T3.odd", "of odd and prime lengths", "blocks.block/fnet/{odd,prime}/mixer"),
            item("T4.mixer", "pooling minus itself, as PoolFormer's", "blocks.block/poolformer/*/mixer"),
            item("T5.rwkv", "RWKV's TokenMixer and ChannelMixer", "blocks.block/rwkv/*/{time,channel}"),
            item("T5.rwkv-state", "and its state", "blocks.block/rwkv/*/time.{numerator,denominator,largest}"),
            item("T5.mamba", "Mamba's", "blocks.block/mamba/*/{mixer,mixer.memory}"),
            item("T5.two-forms", "the recurrence is the parallel form", "recurrent.recurrent_equals_parallel/*"),
            item("T5.carried", "a state carried over calls is one pass", "recurrent.a_state_carried_over_calls_*/*"),
            item("T5.size", "of one size whatever was read", "recurrent.a_state_is_of_one_size_*"),
            item("T5.loops", "by scalar loops", "recurrent.{scan,wkv}_by_scalar_loops/*"),
            item(
                "T6.involution", "with H = T the rearrangement undoes itself", "properties.mixing_by_h_and_then_by_t_*"
            ),
            item("T6.formula", "by the formula", "mixers.mix_heads_by_the_formula/*"),
            item(
                "T6.layers",
                "both layers by scalar loops",
                "mixers.layer_by_scalar_loops/{rank_mixer,token_mixer_large}*",
            ),
            item("T6.own-network", "every token has its own network", "mixers.every_token_has_its_own_network"),
            item("T6.order", "the order is restored before the residual", "mixers.with_the_order_restored_*"),
            item("T7.equal", "as torch's convolution of one kernel", "mixers.separable_convolution/*"),
            item("T7.factors", "one part mixes tokens, the other channels", "mixers.the_depthwise_part_mixes_tokens_*"),
        ),
    ),
    Section(
        "R1",
        "TransformerEncoderLayer",
        ("models.transformer:TransformerEncoderLayer",),
        (
            item("L1.post", "post-LN, as torch's", "torch_layers.encoder_layer/post-*"),
            item("L1.pre", "pre-LN, as torch's", "torch_layers.encoder_layer/pre-*"),
            item("L1.masks", "src_mask, key padding, is_causal", "torch_layers.encoder_layer/*-{bool,float,padding}*"),
            item(
                "L1.dropouts",
                "its dropouts, batch_first both ways",
                "torch_layers.layer_in_training/*-encoder-{row,rows}*",
            ),
            item("L1.form", "as Token and Channel Mixing", "mixer_form.encoder_layer/{pre,post}"),
        ),
    ),
    Section(
        "R1",
        "TransformerDecoderLayer",
        ("models.transformer:TransformerDecoderLayer",),
        (
            item("L2.post", "post-LN, as torch's", "torch_layers.decoder_layer/post-*"),
            item("L2.pre", "pre-LN, as torch's", "torch_layers.decoder_layer/pre-*"),
            item("L2.masks", "tgt_mask and masks of the memory", "torch_layers.decoder_layer/*-{bool,float,padding}*"),
            item("L2.is-causal", "tgt_is_causal", "torch_layers.known_is_causal_alone_*"),
            item("L2.dropouts", "its dropouts", "torch_layers.layer_in_training/*-decoder-*"),
        ),
    ),
    Section(
        "R1",
        "BertLayer",
        ("models.bert:BertLayer",),
        (
            item("L3.layer", "as BERT's", "layers.layer/bert/mlm/layer"),
            item("L3.is-decoder", "is_decoder", "layers.layer/bert/decoder/layer"),
            item("L3.cross", "with a memory", "layers.layer/bert/cross/layer"),
        ),
    ),
    Section(
        "R1",
        "GPT2Layer",
        ("models.gpt2:GPT2Layer",),
        (
            item("L4.layer", "as GPT-2's; Conv1D is transposed, c_attn split in three", "layers.layer/gpt2/base/layer"),
            item("L4.by-layer", "scale_attn_by_inverse_layer_idx", "layers.layer/gpt2/by-layer/layer"),
            item("L4.unscaled", "scale_attn_weights off", "layers.layer/gpt2/unscaled/layer"),
            item("L4.cross", "with a memory", "layers.layer/gpt2/cross/layer"),
        ),
    ),
    Section(
        "R1",
        "LlamaLayer",
        ("models.llama:LlamaLayer",),
        (item("L5.layer", "as Llama's, Mistral's and Qwen2's", "layers.layer/{llama,mistral,qwen2}/*/layer"),),
    ),
    Section(
        "R1",
        "Qwen3Layer",
        ("models.qwen3:Qwen3Layer",),
        (item("L6.layer", "as Qwen3's", "layers.layer/qwen3/*/layer"),),
    ),
    Section(
        "R1",
        "MixtralLayer",
        ("models.mixtral:MixtralLayer",),
        (item("L7.layer", "as Mixtral's and Qwen's mixtures", "layers.layer/{mixtral,qwen2_moe,qwen3_moe}/*/layer"),),
    ),
    Section(
        "R1",
        "DeepseekV3Layer",
        ("models.deepseek_v3:DeepseekV3Layer",),
        (item("L8.layer", "as DeepSeek-V3's and V2's", "layers.layer/{deepseek_v3,deepseek_v2}/*/layer"),),
    ),
)

MODELS = (
    Section(
        "R1",
        "Transformer",
        ("models.transformer:Transformer", "models.marian:MarianModel"),
        (
            item("M1.torch", "as nn.Transformer, post- and pre-LN", "transformer.transformer/{post,pre}-*"),
            item("M1.final-norms", "final norms even when post-LN", "transformer.the_final_norms_are_there_*"),
            item("M1.model", "with embeddings and a head", "transformer.model/{post,pre}-*"),
            item(
                "M1.training",
                "in training, and its gradients",
                "transformer.transformer_in_training/*",
                "transformer.gradients_of_the_model/*",
            ),
            item("M1.steps", "teacher-forced in one pass = step by step", "transformer.one_pass_equals_step_by_step/*"),
            item("M1.greedy", "greedy decoding", "transformer.greedy/*"),
            item(
                "M5.marian", "Marian", "models.model/marian/*/logits", "layers.layer/marian/*/{encoder,decoder}.layer"
            ),
            item("M5.cross-cache", "caches of both attentions", f"cache.what_the_cache_holds/{BOTH_SIDES}/*"),
            item("M5.generation", "and generation over them", f"generation.greedy/{BOTH_SIDES}/*"),
        ),
    ),
    Section(
        "R1",
        "BertModel",
        ("models.bert:BertModel", "heads:Pooler", "heads:MLMHead"),
        (
            item(
                "M2.embedding",
                "three embeddings, token types",
                "blocks.block/bert/*/embed.{tokens,types,positions,norm}",
            ),
            item("M2.pooler", "the pooler", "blocks.block/bert/pretraining/pooler"),
            item(
                "M2.mlm-head",
                "the MLM head, tied, with a bias of its own",
                "blocks.block/bert/mlm/mlm_head.{proj,norm,decoder}",
            ),
            item("M2.untied", "and untied", "blocks.block/bert/untied/mlm_head.decoder"),
            item("M2.logits", "end to end", "models.model/bert/*/logits"),
            item("M2.headless", "without its head", "mapping_spellings.a_bert_without_its_head*"),
        ),
    ),
    Section(
        "R1",
        "GPT2Model",
        ("models.gpt2:GPT2Model",),
        (
            item("M3.ln-f", "ln_f", "blocks.block/gpt2/*/norm"),
            item("M3.tied", "the head is the embedding", "blocks.block/gpt2/base/lm_head"),
            item("M3.untied", "or its own", "blocks.block/gpt2/untied/lm_head"),
            item("M3.logits", "end to end", "models.model/gpt2/*/logits"),
        ),
    ),
    Section(
        "R1",
        "LlamaModel",
        ("models.llama:LlamaModel", "decoder:Decoder"),
        (
            item("M4.logits", "end to end, in every relative", f"models.model/{DECODERS}/*/logits"),
            item("M4.tied", "a tied head", "models.model/{llama,mixtral}/tied/logits"),
            item("M4.untied", "one of its own", "models.model/llama/gqa/logits"),
            item(
                "M4.mtp",
                "the tensors of MTP are dropped, with a reason",
                "mapping_deepseek.further_predictors_are_dropped/*",
            ),
            item("M4.released", "the released size", "mapping_deepseek.the_released_size"),
        ),
    ),
    Section(
        "R1",
        "总结对比",
        (),
        (
            item("S1.table", "the table, made of the code", "comparison_table.the_table_is_the_seeds*"),
            item("S1.facts", "what each of its cells says of transformers", "facts.fact/comparison/*"),
            item("C1.attention", "facts on attention", "facts.fact/{attention,latent_attention,llama_attention}/*"),
            item("C1.networks", "facts on networks and experts", "facts.fact/{ffn,moe}/*"),
            item("C1.positions", "facts on norms and positions", "facts.fact/{norm,position,rope}/*"),
            item("C1.layers", "facts on layers and mixers", "facts.fact/{layers,mixing,torch_layers}/*"),
            item("C1.models", "facts on models", "facts.fact/models/*"),
        ),
    ),
)

SECTIONS = (*ATTENTION, *NETWORKS, *POSITIONS, *LAYERS, *MODELS)
