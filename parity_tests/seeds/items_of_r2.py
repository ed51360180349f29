"""R2, "Transformer" by the example of LLaMA: the sections that go beyond R1, in their order."""

from __future__ import annotations

from parity_tests.seeds.items_of_r1 import DECODERS
from parity_tests.seeds.record import Section, item

SECTIONS = (
    Section(
        "R2",
        "1.1 词嵌入 Embedding",
        ("models.transformer:TransformerModel",),
        (item("M4.embedding", "tokens are looked up", f"blocks.block/{DECODERS}/*/embed"),),
    ),
    Section(
        "R2",
        "1.1 注意力机制 Self-Attention",
        ("attention:softmax_attention",),
        (
            item("A1.softmax", "the weights of attention", "blocks.block/{bert,gpt2,llama}/*/attn.probs"),
            item("A1.no-bias", "without biases, as the formulas have it", "torch_layers.attention_without_biases/self"),
        ),
    ),
    Section(
        "R2",
        "1.2 多头注意力机制 MHA",
        ("attention:MHA",),
        (item("A1.heads", "one head a head, as MHA without RoPE", "positions.one_key_head_*"),),
    ),
    Section(
        "R2",
        "1.4 层归一化 Layer Norm",
        ("norm:LayerNorm",),
        (item("N1.over-the-width", "over the width of each token", "torch_layers.encoder_layer/*"),),
    ),
    Section(
        "R2",
        "2.1 输入",
        ("models.transformer:InterleavedPositions",),
        (
            item(
                "P1.input",
                "embedding and position, with dropout",
                "transformer.gradients_of_the_model/{post,pre}-train",
            ),
        ),
    ),
    Section(
        "R2",
        "2.2 Encoder",
        ("models.transformer:TransformerEncoder",),
        (item("M1.encoder", "the stack of encoder layers", "transformer.transformer/*"),),
    ),
    Section(
        "R2",
        "2.3 Decoder",
        ("models.transformer:TransformerDecoder",),
        (item("M1.decoder", "the stack of decoder layers, over a memory", "transformer.transformer/*"),),
    ),
    Section(
        "R2",
        "2.4 Linear + Softmax + 输出",
        ("models.transformer:TransformerModel",),
        (item("M1.head", "logits, and the likeliest token", "transformer.{model,greedy}/*"),),
    ),
    Section(
        "R2",
        "3.1 训练和推理",
        ("generation:generate", "cache:KVCache"),
        (
            item("G1.one-pass", "a prompt and single steps are one pass", f"cache.cache/{DECODERS}/*/*steps*"),
            item("G1.chunks", "and several tokens at once", f"cache.cache/{DECODERS}/*/*chunks*"),
            item("G1.edges", "across every edge of a window or a length", "cache.cache_at_an_edge/{mistral,llama}/*"),
            item("G1.gpt2", "the same in GPT-2", "cache.cache/gpt2/*/*steps*"),
            item("G1.held", "the cache holds the same", f"cache.what_the_cache_holds/{DECODERS}/*"),
            item("G1.greedy", "greedy tokens are the same", f"generation.greedy/{DECODERS}/*"),
            item("G1.eos", "it stops at EOS", f"generation.stops_at_eos/{DECODERS}/*"),
            item(
                "G1.left-padding",
                "a row padded on the left is the row alone",
                f"generation.a_left_padded_row_*/{DECODERS}/*",
            ),
            item(
                "G1.prefilled", "from a cache that was filled before", f"generation.from_a_prefilled_cache/{DECODERS}/*"
            ),
            item("G1.training", "training reads all at once, and predicts the next", f"training.loss/{DECODERS}/*"),
        ),
    ),
    Section(
        "R2",
        "3.2 Encoder/Decoder Only",
        ("models.t5:T5Model", "models.bart:BartModel"),
        (
            item("M5.t5", "T5", "models.model/t5/*/logits", "layers.layer/t5/*/{encoder,decoder}.layer"),
            item("M5.relative-bias", "T5's relative bias", "blocks.block/t5/*/{encoder,decoder}.relative"),
            item("M5.bart", "BART", "models.model/bart/*/logits", "layers.layer/bart/*/{encoder,decoder}.layer"),
        ),
    ),
    Section(
        "R2",
        "3.3 LLama",
        ("models.llama:LlamaModel",),
        (
            item("M4.llama", "Llama's layers, end to end", "layers.layer/llama/*/layer", "models.model/llama/*/logits"),
            item("M4.published", "configs as published", "configs.config/llama/*"),
        ),
    ),
    Section(
        "R2",
        "4.1 Multi-Head Attention (MHA) 实现",
        ("models.mini_llama:MultiHeadAttention",),
        (
            item(
                "M6.rope-call",
                "as printed it has no positions: calling the module rotates nothing",
                "mini_llama.word_for_word_*",
                "package_twins.calling_the_module_*",
            ),
        ),
    ),
    Section(
        "R2",
        "4.2 Feed Forward (MLP) 的实现",
        ("models.mini_llama:MLP",),
        (item("M6.mlp", "a gated network, as Llama's", "mini_llama.it_is_a_llama*"),),
    ),
    Section(
        "R2",
        "4.3 Decoder侧的实现",
        ("models.mini_llama:DecoderBlock",),
        (item("M6.block", "norm, attention, norm, network", "mini_llama.it_is_a_llama*"),),
    ),
    Section(
        "R2",
        "4.6 LLama的整体实现",
        ("models.mini_llama:MiniLlama",),
        (
            item("M6.llama", "it is a Llama, through the permutation of q and k", "mini_llama.it_is_a_llama*"),
            item("M6.no-permutation", "and without it is none", "mini_llama.without_the_other_order_it_is_none*"),
            item(
                "M6.printed",
                "the printed code gives the same",
                "mini_llama.it_is_what_*",
                "mini_llama.what_*_prints_goes_into_a_llama*",
            ),
            item("M6.training", "training and gradients", "mini_llama.{gradients,training_reads_all_at_once_*}"),
            item("M6.steps", "step by step is one pass", "mini_llama.inference_step_by_step_*"),
            item("M6.writes", "it writes what Llama writes", "mini_llama.it_writes_what_llama_writes*"),
            item("C1.notes", "the facts of R2", "facts.fact/{llama_notes,transformer_notes}/*"),
        ),
    ),
)
