"""Findings that no comparison of a fixture shows, for transformers refuses or breaks there: each must still reproduce."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import weight_mapping
from parity_tests.families import FAMILIES
from parity_tests.families.scaling_deviations import DIVISORS_DROPPED
from parity_tests.harness import hf
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.lens import Lens
from parity_tests.harness.record import FOUND_HERE, Known
from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_gguf
from reference_impl.losses import language_model_loss

IDS = torch.tensor([[1, 2, 3, 4]])
WIDTHS = {
    "hidden_size": 20,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def raises(error: str, run: Callable[[], Any]) -> bool:
    """Whether this breaks, and with this error; any other is none of what is known."""
    try:
        with torch.no_grad():
            run()
    except Exception as found:
        if type(found).__name__ != error:
            raise
        return True
    return False


def small(family: str, **changes: Any) -> Any:
    """A causal model with weights of its own choice."""
    config = getattr(transformers, f"{family}Config")(**(WIDTHS | changes))
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def grouped_in_half_precision(tmp_path: Path) -> bool:
    model = small("Mixtral", head_dim=8, num_local_experts=4, experts_implementation="grouped_mm")
    assert model(IDS).logits.shape == (1, 4, 50), "it is not broken in float32"
    return raises("RuntimeError", lambda: model.bfloat16()(IDS))


def deepseek_v2_as_it_is(tmp_path: Path) -> bool:
    """All but the sizes is left as the config has it."""
    few = {"n_routed_experts": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 0}
    assert not raises("TypeError", lambda: small("DeepseekV2", **few, num_experts_per_tok=2)(IDS))
    return raises("TypeError", lambda: small("DeepseekV2", **few)(IDS))


def width_no_multiple_of_heads(tmp_path: Path) -> bool:
    error = "StrictDataclassClassValidationError"
    return raises(error, lambda: small("Llama", hidden_size=30, num_attention_heads=4, head_dim=8)(IDS))


def jitter_in_place(tmp_path: Path) -> bool:
    model = small("Mixtral", head_dim=8, num_local_experts=4, router_jitter_noise=0.25)
    experts = next(module for module in model.modules() if type(module).__name__ == "MixtralSparseMoeBlock")
    given = torch.ones(1, 3, 20)
    with torch.no_grad():
        experts.train()(given)
    return not torch.equal(given, torch.ones(1, 3, 20))


def qwen3_gguf(tmp_path: Path) -> bool:
    config = {**CONFIG, "model_type": "qwen3", "head_dim": 6}
    write_gguf(tmp_path / "model.gguf", config, tensors_of(config), permute=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    return raises("RuntimeError", lambda: load(tmp_path, gguf_file="model.gguf"))


def divisors_of_a_gguf(tmp_path: Path) -> bool:
    """As converters write Llama 3.1's scaling. What transformers gives, the reference gives with the divisors dropped."""
    config = {**CONFIG, "head_dim": 4}  # transformers passes key_length over
    divisors = {"rope_freqs.weight": torch.tensor([1.0, 8.0])}
    file = write_gguf(tmp_path / "model.gguf", config, tensors_of(config), extra=divisors)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name).double()
    ours = weight_mapping.load(file, dtype=torch.float64)
    ids = torch.arange(24)[None]
    with torch.no_grad(), Lens():
        logits = theirs(ids).logits
    with torch.no_grad():
        right, dropped = ours(ids), FAMILIES["llama"].deviation(DIVISORS_DROPPED.name).of(ours)(ids)
    assert largest_relative(right, dropped) > 0.01, "the divisors change nothing"
    found = [largest_relative(logits, each) < BAR for each in (right, dropped)]
    assert any(found), "it is neither"
    return found[1]


PADDED = torch.tensor([[0, 0, 0, 1, 2, 3], [3, 4, 5, 6, 7, 8]])
"""0 is padding, in the first row alone."""


def padding_is_penalised(field: str) -> bool:
    """Whether a setting changes the score of padding in a row that is padded, where no text has that token."""
    model = small("Llama", head_dim=10)
    given: dict[str, Any] = {"max_new_tokens": 1, "pad_token_id": 0, "output_logits": True, "output_scores": True}
    given |= {"attention_mask": (PADDED != 0).long(), "return_dict_in_generate": True, field: 1.5}
    with torch.no_grad():
        out = model.generate(PADDED, **given)
    scores, logits = out.scores[0], out.logits[0]
    assert not torch.equal(scores, logits), "the setting does nothing"
    assert torch.equal(scores[1, 0], logits[1, 0]), "no text has this token"
    return not torch.equal(scores[0, 0], logits[0, 0])


def repetition_of_padding(tmp_path: Path) -> bool:
    return padding_is_penalised("repetition_penalty")


def repetition_of_padding_in_the_source(tmp_path: Path) -> bool:
    return padding_is_penalised("encoder_repetition_penalty")


def beams_filled_with_eos(tmp_path: Path) -> bool:
    """Some beams of a search end early: what follows their end, where padding is the token 0?"""
    model = small("Llama", head_dim=10)
    with torch.no_grad():
        out = model.generate(
            PADDED, num_beams=4, num_return_sequences=4, max_new_tokens=6, pad_token_id=0, eos_token_id=list(range(1, 50, 2))
        )
    after = [row[6:].tolist() for row in out]
    ended = [next((i for i, token in enumerate(row) if token % 2), None) for row in after]
    filling = {token for row, end in zip(after, ended, strict=True) if end is not None for token in row[end + 1 :]}
    assert len(filling) == 1, "no beam ends before the others"
    return filling == {1}


def grouped_in_float32(tmp_path: Path) -> bool:
    """As it is run unless something else is asked for."""
    assert not raises("RuntimeError", lambda: small("Mixtral", hidden_size=28, head_dim=8, num_local_experts=4)(IDS))
    return raises("RuntimeError", lambda: small("Mixtral", hidden_size=27, head_dim=8, num_local_experts=4)(IDS))


def all_layers_dense(tmp_path: Path) -> bool:
    dense = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": [0]}
    assert not raises("IndexError", lambda: small("Qwen3Moe", **dense)(IDS))
    return raises("IndexError", lambda: small("Qwen3Moe", **dense)(IDS, output_router_logits=True))


TWO_SIDES = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_attention_heads": 2} | {
    "decoder_attention_heads": 2, "vocab_size": 20, "max_position_embeddings": 16, "pad_token_id": 0,
    "decoder_start_token_id": 1, "eos_token_id": 2, "encoder_layers": 1,
}


def decoder_deeper_than_no_encoder(tmp_path: Path) -> bool:
    """The encoder's number of layers is read, and there is no encoder."""
    one, two = (small_of("BartForCausalLM", TWO_SIDES | {"decoder_layers": n}) for n in (1, 2))
    assert not raises("IndexError", lambda: one(IDS))
    return raises("IndexError", lambda: two(IDS))


def labels_of_a_decoder_not_moved(tmp_path: Path) -> bool:
    model = small_of("MarianForCausalLM", TWO_SIDES | {"decoder_layers": 1})
    with torch.no_grad():
        output = model(IDS, labels=IDS)
    same = torch.nn.functional.cross_entropy(output.logits[0], IDS[0])
    moved = language_model_loss(output.logits, IDS)
    return bool(torch.isclose(output.loss, same)) and not torch.isclose(output.loss, moved)


def positions_of_choices(tmp_path: Path) -> bool:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 20, "n_positions": 16}
    model, ids = small_of("GPT2DoubleHeadsModel", sizes), IDS.expand(2, 2, 4)
    given = {"mc_token_ids": torch.zeros(2, 2).long(), "token_type_ids": ids}
    assert not raises("RuntimeError", lambda: model(ids, **given))
    return raises("RuntimeError", lambda: model(ids, **given, position_ids=torch.arange(4).expand(2, 2, 4)))


def answers_with_three_labels(tmp_path: Path) -> bool:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
    assert not raises("ValueError", lambda: small_of("BertForQuestionAnswering", sizes)(IDS))
    return raises("ValueError", lambda: small_of("BertForQuestionAnswering", sizes | {"num_labels": 3})(IDS))


def first_labels_decide(tmp_path: Path) -> bool:
    """A class by its number, then one by a row of zeros and ones."""
    model = small_of("LlamaForSequenceClassification", WIDTHS | {"num_labels": 3})
    with torch.no_grad():
        model(IDS, labels=torch.tensor([1]))
    return model.config.problem_type == "single_label_classification"


def hidden_states_without_embedding(tmp_path: Path) -> bool:
    """One more than there are layers, and the first of them is not what goes into the first layer."""
    model = small_of("MambaForCausalLM", {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4})
    with torch.no_grad():
        states = model(IDS, output_hidden_states=True).hidden_states
    return len(states) == 3 and not torch.equal(states[0], model.get_input_embeddings()(IDS))


def small_of(name: str, config: dict[str, Any]) -> Any:
    """A model of any class, with weights of its own choice."""
    kind = getattr(transformers, name)
    return kind(kind.config_class(**config)).eval()


def known(name: str, smallest: str = "", since: str = "0", until: str | None = None) -> Known:
    return Known(name=name, smallest=smallest, sites=(), link=FOUND_HERE, since=since, until=until)


FINDINGS: dict[Callable[..., bool], Known] = {
    grouped_in_half_precision: known(
        "grouped_mm, the default, raises in half precision when a width is no multiple of 8", since="5.0.0"
    ),
    grouped_in_float32: known("grouped_mm, the default, raises in float32 when a width is no multiple of 4", since="5.0.0"),
    deepseek_v2_as_it_is: known("a DeepSeek-V2 of the config as it is cannot run a forward", "`DeepseekV2Config()`"),
    width_no_multiple_of_heads: known("a hidden_size that is no multiple of the heads is refused with head_dim", since="5.0.0"),
    jitter_in_place: known(
        "router jitter multiplies the caller's tensor in place", "`MixtralSparseMoeBlock.train()(x)`, then look at `x`"
    ),
    repetition_of_padding: known(
        "repetition_penalty takes padding for text", "two rows, one padded, `output_scores=True`", until="5.23.0"
    ),
    repetition_of_padding_in_the_source: known(
        "encoder_repetition_penalty takes padding for text", "two rows, one padded, `output_scores=True`"
    ),
    beams_filled_with_eos: known(
        "beams that have ended are filled with the end of text where padding is the token 0, as T5's is",
        "`num_beams=4, num_return_sequences=4, pad_token_id=0`",
    ),
    divisors_of_a_gguf: known("a Llama GGUF's rope_freqs.weight, the divisors of the frequencies, is dropped in silence"),
    qwen3_gguf: known("a Qwen3 GGUF loads only with a head width of 128: attention.key_length is passed over"),
    all_layers_dense: known("a Qwen MoE whose layers are all dense raises when router logits are asked for", since="5.0.0"),
    decoder_deeper_than_no_encoder: known("BartForCausalLM raises over a cache when decoder_layers is above encoder_layers"),
    labels_of_a_decoder_not_moved: known("the loss of BartForCausalLM and MarianForCausalLM is of the token itself"),
    positions_of_choices: known("GPT2DoubleHeadsModel refuses position_ids of the shape of input_ids"),
    answers_with_three_labels: known("ForQuestionAnswering of BERT, FNet and T5 raises when num_labels is not 2"),
    first_labels_decide: known("the first labels that a classifier sees are written into its config, and decide for all"),
    hidden_states_without_embedding: known("hidden_states of Mamba and RWKV lack the embedding, and end with a norm besides"),
}


@pytest.mark.parametrize("reproduce", FINDINGS, ids=lambda reproduce: reproduce.__name__)
def test_a_finding_reproduces(reproduce: Callable[..., bool], tmp_path: Path) -> None:
    """Strict, as known differences are: once upstream mends it, its range of releases is to be closed."""
    finding = FINDINGS[reproduce]
    expected = finding.in_release(hf.VERSION)
    if reproduce(tmp_path) != expected:
        pytest.fail(f"transformers {hf.VERSION}: {finding.name}: {'no longer' if expected else 'not known of this release'}")
