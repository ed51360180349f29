"""R1, "Model": from nn.Transformer to DeepSeek-V3."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, default, defaults, gives
from parity_tests.facts.subjects import (
    close,
    counted,
    filled,
    has,
    hub_config,
    ids,
    internals,
    model,
    published,
    run,
    values,
    watch,
)
from parity_tests.facts.torch_layers import signature_defaults

# --- nn.Transformer ---


def small_transformer(norm_first: bool = False) -> Any:
    return filled(nn.Transformer(12, 3, 2, 2, 20, batch_first=True, norm_first=norm_first))


def stacked() -> bool:
    """memory = LayerNorm(EncoderLayer^N(src)), y = LayerNorm(DecoderLayer^N(tgt, memory)), post-LN layers."""
    net, src, tgt = small_transformer(), values("src", 1, 7, 12), values("tgt", 1, 5, 12)
    memory = src
    for layer in net.encoder.layers:
        memory = layer(memory)
    memory = seed.layer_norm(memory, net.encoder.norm)
    y = tgt
    for layer in net.decoder.layers:
        y = layer(y, memory)
    return close(net(src, tgt), seed.layer_norm(y, net.decoder.norm))


def big_transformer() -> Any:
    with torch.device("meta"):
        return nn.Transformer()


TRF = "R1, Transformer"

TRANSFORMER_FACTS = (
    Fact(
        id="transformer-formula",
        place=TRF,
        quote="memory = LayerNorm( TransformerEncoderLayer^6( … y = LayerNorm( TransformerDecoderLayer^6(",
        says="nn.Transformer is LayerNorm(EncoderLayer^N(src)), then LayerNorm(DecoderLayer^N(tgt, memory))",
        check=stacked,
    ),
    Fact(
        id="transformer-sizes",
        place=TRF,
        quote="TransformerEncoderLayer^6 … d_model=512",
        says="It has 6 + 6 layers and d_model 512 by default",
        check=lambda: [len(big_transformer().encoder.layers), len(big_transformer().decoder.layers)] == [6, 6]
        and big_transformer().d_model == 512,
    ),
    Fact(
        id="transformer-body-only",
        place=TRF,
        quote="nn.Transformer 只包含 Encoder 与 Decoder 主体,不包含 Embedding、位置编码和输出层",
        says="It has no embedding, no positions and no output layer: d_model in, d_model out",
        check=lambda: {name for name, _ in big_transformer().named_children()} == {"encoder", "decoder"}
        and not has(big_transformer(), nn.Embedding)
        and {m.out_features for m in big_transformer().modules() if isinstance(m, nn.Linear)} == {512, 2048},
    ),
    Fact(
        id="transformer-final-norms",
        place=TRF,
        quote="即使 norm_first=False,nn.Transformer 也会在 Encoder、Decoder 末尾各加一个 LayerNorm",
        says="Encoder and decoder end in a LayerNorm of their own even with norm_first=False",
        check=lambda: all(
            isinstance(part.norm, nn.LayerNorm)
            for norm_first in (False, True)
            for net in (small_transformer(norm_first),)
            for part in (net.encoder, net.decoder)
        ),
    ),
    Fact(
        id="transformer-batch-second",
        place=TRF,
        quote="默认 batch_first=False,形状为 (seq, batch, d_model)",
        says="batch_first is False by default",
        check=gives([False], lambda: signature_defaults(nn.Transformer, "batch_first")),
    ),
)


# --- BertModel ---


def bert_embeddings() -> bool:
    """LayerNorm of the sum, and dropout behind it."""
    net = model("Bert", hidden_dropout_prob=0.5)
    types = torch.tensor([[0, 0, 1, 1, 1]])
    (seen,) = watch(net, "embeddings", input_ids=ids(5), token_type_ids=types)
    e = seen.module
    normed = seed.layer_norm(
        e.word_embeddings(ids(5)) + e.position_embeddings(torch.arange(5)) + e.token_type_embeddings(types), e.LayerNorm
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        (dropped,) = watch(net.train(), "embeddings", input_ids=ids(5), token_type_ids=types)
    assert 0 < (dropped.y == 0).sum() < dropped.y.numel(), "nothing was dropped"
    return close(seen.y, normed) and close(dropped.y, torch.where(dropped.y == 0, 0, 2 * normed))


def last_is_normed() -> bool:
    """What the model returns is what the last layer's LayerNorm gave."""
    net = model("Bert")
    (seen,) = watch(net, "encoder.layer.1.output.LayerNorm", input_ids=ids(5))
    return torch.equal(run(net, input_ids=ids(5)).last_hidden_state, seen.y)


def pooler() -> bool:
    net = model("Bert")
    out = run(net, input_ids=ids(5))
    return close(out.pooler_output, torch.tanh(net.pooler.dense(out.last_hidden_state[:, 0])))


def mlm_head() -> bool:
    net = model("Bert", "ForMaskedLM")
    y = run(net.bert, input_ids=ids(5)).last_hidden_state
    head = net.cls.predictions
    hidden = seed.layer_norm(F.gelu(head.transform.dense(y)), head.transform.LayerNorm)
    wanted = hidden @ net.bert.embeddings.word_embeddings.weight.T + head.decoder.bias
    return close(run(net, input_ids=ids(5)).logits, wanted)


def tied(family: str, kind: str = "ForCausalLM", **changes: Any) -> bool:
    net = model(family, kind, **changes)
    return net.get_output_embeddings().weight is net.get_input_embeddings().weight


BERT = "R1, BertModel"

BERT_FACTS = (
    Fact(
        id="bert-embeddings",
        place=BERT,
        quote="Dropout( LayerNorm( TokenEmbedding(x) … + PositionEmbedding(pos) + TokenTypeEmbedding(seg)",
        says="BERT's input is Dropout(LayerNorm(token + position + token type))",
        check=bert_embeddings,
    ),
    Fact(
        id="bert-sizes",
        place=BERT,
        quote="y = BertLayer^12 … d_model=768",
        says="It has 12 layers by default, d_model 768",
        check=defaults("Bert", num_hidden_layers=12, hidden_size=768),
    ),
    Fact(
        id="bert-embedding-names",
        place=BERT,
        quote="word_embeddings / position_embeddings / token_type_embeddings",
        says="The three are word_embeddings, position_embeddings and token_type_embeddings",
        check=gives(
            {"word_embeddings", "position_embeddings", "token_type_embeddings"},
            lambda: {n for n, m in model("Bert").embeddings.named_children() if isinstance(m, nn.Embedding)},
        ),
    ),
    Fact(
        id="bert-token-types",
        place=BERT,
        quote="type_vocab_size=2",
        says="There are two token types",
        check=defaults("Bert", type_vocab_size=2),
    ),
    Fact(
        id="bert-no-final-norm",
        place=BERT,
        quote="最后一层输出已经过 LayerNorm,所以末尾没有额外的 LayerNorm",
        says="Nothing norms the last layer's output again: BertModel returns it as it is",
        check=last_is_normed,
    ),
    Fact(
        id="bert-pooler",
        place=BERT,
        quote="pooled = Tanh(LinearPool(y[:, 0]))",
        says="BertPooler is Tanh(Linear(first token))",
        check=pooler,
    ),
    Fact(
        id="bert-mlm-head",
        place=BERT,
        quote="BertLMPredictionHead)为 LinearDecoder(LayerNorm(GELU(Linear(y))))",
        says="The MLM head is LinearDecoder(LayerNorm(GELU(Linear(y)))), with the embedding's weight and a bias",
        check=mlm_head,
    ),
    Fact(
        id="bert-tied",
        place=BERT,
        quote="LinearDecoder 与 TokenEmbedding 共享权重",
        says="LinearDecoder and TokenEmbedding are one tensor",
        check=lambda: tied("Bert", "ForMaskedLM"),
    ),
    Fact(
        id="bert-vocabulary",
        place=BERT,
        quote="vocab_size=30522",
        says="BERT's vocabulary has 30522 entries",
        check=defaults("Bert", vocab_size=30522),
    ),
)


# --- GPT2Model ---


def gpt2_input() -> bool:
    first, layer = watch(model("GPT2"), "wte", "h.0", input_ids=ids(5))
    net = model("GPT2")
    return close(layer.x, net.wte.weight[ids(5)] + net.wpe.weight[:5]) and first.times == 1


def gpt2_head() -> bool:
    net = model("GPT2", "LMHeadModel")
    (last,) = watch(net, "transformer.h.1", input_ids=ids(5))
    normed = seed.layer_norm(last.y, net.transformer.ln_f)
    assert not torch.allclose(normed, last.y, rtol=0.1), "the last layer's output is normed already"
    return close(run(net, input_ids=ids(5)).logits, normed @ net.transformer.wte.weight.T)


def gpt2_millions(layers: int, width: int) -> int:
    """Parameters of a GPT-2 of that size, from a model of one layer and one of none."""
    counts = []
    for n in (0, 1):
        net = published("GPT2", n_layer=n, n_embd=width, n_head=width // 64)
        counts.append(sum(p.numel() for p in net.parameters()))
    return round((counts[0] + layers * (counts[1] - counts[0])) / 1e6)


GPT2 = "R1, GPT2Model"

GPT2_FACTS = (
    Fact(
        id="gpt2-input",
        place=GPT2,
        quote="TokenEmbedding(x) # as (batch, seq, d_model=768) + PositionEmbedding(pos)",
        says="The input is wte + wpe, learned absolute positions",
        check=gpt2_input,
    ),
    Fact(
        id="gpt2-sizes",
        place=GPT2,
        quote="GPT2Layer^12 … d_model=768",
        says="It has 12 layers by default, d_model 768",
        check=defaults("GPT2", n_layer=12, n_embd=768),
    ),
    Fact(
        id="gpt2-vocabulary",
        place=GPT2,
        quote="as (batch, seq, vocab=50257)",
        says="Its vocabulary has 50257 entries",
        check=defaults("GPT2", vocab_size=50257),
    ),
    Fact(
        id="gpt2-n-positions",
        place=GPT2,
        quote="最大长度 n_positions=1024",
        says="n_positions is 1024, the height of wpe",
        check=gives((1024, 768), lambda: tuple(published("GPT2", n_layer=1).wpe.weight.shape)),
    ),
    Fact(
        id="gpt2-ln-f",
        place=GPT2,
        quote="最后一层的输出没有归一化,所以需要末尾的 ln_f",
        says="The last layer's output is not normed; ln_f norms it before the head",
        check=gpt2_head,
    ),
    Fact(
        id="gpt2-tied",
        place=GPT2,
        quote="LMHead: 属于 GPT2LMHeadModel,tie_word_embeddings=True,与 TokenEmbedding 共享权重",
        says="GPT2LMHeadModel has the head, and it is the token embedding: tie_word_embeddings is True",
        check=lambda: default("GPT2", "tie_word_embeddings") is True
        and tied("GPT2", "LMHeadModel")
        and not hasattr(model("GPT2"), "lm_head"),
    ),
    Fact(
        id="gpt2-family",
        place=GPT2,
        quote="GPT-2 small / medium / large / xl 分别为 12 / 24 / 36 / 48 层",
        says="With 12, 24, 36 and 48 layers HF's GPT-2 has the published 124, 355, 774 and 1558 million parameters",
        check=gives(
            [124, 355, 774, 1558],
            lambda: [gpt2_millions(*size) for size in ((12, 768), (24, 1024), (36, 1280), (48, 1600))],
        ),
    ),
)


# --- LlamaModel and its relatives ---


def llama_input() -> bool:
    """Into the first layer goes the embedding and nothing else, in training too; order is all RoPE's."""
    net = model("Llama").train()
    (layer,) = watch(net, "layers.0", input_ids=ids(5))
    return torch.equal(layer.x, net.embed_tokens.weight[ids(5)]) and not has(net, nn.Dropout)


def mask_made_once() -> int:
    with counted(internals("Llama"), "create_causal_mask") as spy:
        run(model("Llama"), input_ids=ids(5))
    return spy.call_count


def one_mask() -> bool:
    layers = watch(model("Llama"), *(f"layers.{i}.self_attn" for i in range(3)), input_ids=ids(5))
    masks = [seen.kwargs["attention_mask"] for seen in layers]
    return masks[0] is not None and all(mask is masks[0] for mask in masks)


def llama_head() -> bool:
    net = model("Llama", "ForCausalLM")
    (last,) = watch(net, "model.layers.2", input_ids=ids(5))
    normed = seed.rms_norm(last.y, net.model.norm.weight, 1e-6)
    return close(run(net, input_ids=ids(5)).logits, normed @ net.lm_head.weight.T)


def top_level(family: str) -> set[str]:
    return {name for name, _ in model(family).named_children()}


def mtp_layers() -> int:
    """How many MTP layers can be made for a DeepSeek-V3 that was asked to draft with them."""
    if not hasattr(transformers.GenerationConfig(), "use_mtp"):
        return 0
    mtp = importlib.import_module("transformers.modeling_layers").MtpModel
    return len(mtp(model("DeepseekV3", "ForCausalLM"), default("DeepseekV3", "num_mtp_layers")).layers)


LLAMA = "R1, LlamaModel"

LLAMA_FACTS = (
    Fact(
        id="llama-model",
        place=LLAMA + " · R2, 3.3 · R2, 4.6",
        quote="y = LMHead( RMSNorm( LlamaLayer^32( TokenEmbedding(x)",
        says="Llama is LMHead(RMSNorm(LlamaLayer^N(TokenEmbedding(x)))): normed, then projected",
        check=llama_head,
    ),
    Fact(
        id="llama-sizes",
        place=LLAMA,
        quote="LlamaLayer^32 … d_model=4096 … vocab=32000",
        says="It has 32 layers by default, d_model 4096, vocabulary 32000",
        check=defaults("Llama", num_hidden_layers=32, hidden_size=4096, vocab_size=32000),
    ),
    Fact(
        id="llama-input",
        place=LLAMA + " · R2, 3.3",
        quote="输入处没有位置编码,也没有 Dropout;位置信息全靠每层 attention 中的 RoPE",
        says="At the input stand no positions and no dropout",
        check=llama_input,
    ),
    Fact(
        id="llama-mask-once",
        place=LLAMA,
        quote="rotary_emb 和 create_causal_mask 在 Model 层只算一次,然后传给每一层",
        says="create_causal_mask is called once in the model",
        check=gives(1, mask_made_once),
    ),
    Fact(
        id="llama-mask-handed-on",
        place=LLAMA,
        quote="然后传给每一层",
        says="Every layer gets the same mask",
        check=one_mask,
    ),
    Fact(
        id="llama-untied",
        place=LLAMA,
        quote="LMHead: 属于 LlamaForCausalLM,默认 tie_word_embeddings=False",
        says="LlamaForCausalLM has the head, apart from the embedding: tie_word_embeddings is False",
        check=lambda: default("Llama", "tie_word_embeddings") is False
        and not tied("Llama")
        and tied("Llama", tie_word_embeddings=True)
        and not hasattr(model("Llama"), "lm_head"),
    ),
    *(
        Fact(
            id=f"{family.lower()}-top-level",
            place=LLAMA,
            quote="Qwen3Model、MixtralModel、DeepseekV3Model 的顶层结构与此相同,只是把 LlamaLayer 换成对应的 Layer",
            says=f"{family}Model has LlamaModel's parts at its top: embed_tokens, layers, norm, rotary_emb",
            check=lambda family=family: top_level(family) == top_level("Llama") == PARTS,
        )
        for family in ("Qwen3", "Mixtral", "DeepseekV3")
    ),
    Fact(
        id="deepseek-sizes",
        place=LLAMA,
        quote="DeepSeek-V3 为 61 层、d_model=7168",
        says="DeepSeek-V3 has 61 layers, d_model 7168, in HF's default and as published",
        check=lambda: (default("DeepseekV3", "num_hidden_layers"), default("DeepseekV3", "hidden_size"))
        == (hub_config("DeepSeek-V3")["num_hidden_layers"], hub_config("DeepSeek-V3")["hidden_size"])
        == (61, 7168),
    ),
    Fact(
        id="deepseek-no-mtp",
        place=LLAMA,
        quote="HF 实现中不包含 MTP(Multi-Token Prediction)模块",
        says="HF's implementation has no MTP module",
        check=gives(0, mtp_layers),
        changed=Changed(
            since="5.14.0",
            now="MtpModel makes num_mtp_layers of them beside the model, and generate(use_mtp=True) drafts with them",
            check=lambda: mtp_layers() == default("DeepseekV3", "num_mtp_layers") == 1,
        ),
    ),
    Fact(
        id="deepseek-model-no-mtp",
        place=LLAMA,
        quote="HF 实现中不包含 MTP(Multi-Token Prediction)模块",
        says="DeepseekV3ForCausalLM itself holds num_hidden_layers layers, and none for MTP",
        check=lambda: len((net := model("DeepseekV3", "ForCausalLM")).model.layers) == 3
        and {name.split(".")[0] for name, _ in net.named_parameters()} == {"model", "lm_head"}
        and not any("mtp" in name.lower() or "eh_proj" in name for name, _ in net.named_modules()),
    ),
)
PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}

FACTS = (*TRANSFORMER_FACTS, *BERT_FACTS, *GPT2_FACTS, *LLAMA_FACTS)
