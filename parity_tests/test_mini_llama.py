"""Mini-LLaMA: as R2 prints it, and as the Llama that it is once the rows of q and k are put in another order."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from parity_tests.fixtures.llama import FILL
from parity_tests.fixtures.values import fill
from parity_tests.harness import hf
from parity_tests.harness.batches import Batch, tokens
from parity_tests.harness.compare import BAR, DTYPES, largest_relative
from parity_tests.harness.shapes import unchecked
from parity_tests.harness.training import GRADIENT_BAR
from parity_tests.torch_twins import Judge, carried, gradients_differ
from reference_impl.generation import generate
from reference_impl.losses import language_model_loss
from reference_impl.models.mini_llama import MiniLlama, MiniLlamaConfig
from weight_mapping import mini_llama as tables
from weight_mapping.loading import parameters_of
from weight_mapping.plan import plan
from weight_mapping.rules import Rule, Table

CONFIG = MiniLlamaConfig(vocab_size=131, d_model=48, n_layers=3, n_heads=4)
IDS = tokens("mini-llama", (3, 17), CONFIG.vocab_size)
PRECISIONS = ("f64", "f32", "bf16")


@cache
def llama(precision: str) -> nn.Module:
    """transformers' Llama of this shape, with the same values in every precision. Its norms take an eps of 0."""
    config = transformers.LlamaConfig(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.d_model,
        intermediate_size=CONFIG.d_ff,
        num_hidden_layers=CONFIG.n_layers,
        num_attention_heads=CONFIG.n_heads,
        num_key_value_heads=CONFIG.n_heads,
        rms_norm_eps=0.0,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(fill({name: t.shape for name, t in model.state_dict().items()}, FILL))
    for parameter in model.parameters():  # not .to(): RoPE's frequencies stay in float32, as when a model is loaded
        parameter.data = parameter.data.to(DTYPES[precision])
    return model.eval()


@cache
def mini(precision: str) -> MiniLlama:
    return carried(llama(precision), tables.hf(CONFIG), MiniLlama(CONFIG), precision)


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Judge:
    return Judge(request)


def run(precision: str, ids: Tensor, **options: Any) -> Any:
    """transformers' answer, under the lens in float64."""
    with hf.frozen_rope_formulas(llama(precision)), hf.lens_for(precision):
        return llama(precision)(input_ids=ids, **options)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_is_a_llama(precision: str, check: Judge) -> None:
    with torch.no_grad():
        check("logits", run(precision, IDS).logits, mini(precision)(IDS), mini("f64")(IDS))


def test_without_the_other_order_it_is_none() -> None:
    table = tables.hf(CONFIG)
    plain = Table(index=table.index, rules=tuple(Rule(rule.sources, rule.targets) for rule in table.rules))
    mistaken = carried(llama("f64"), plain, MiniLlama(CONFIG), "f64")
    with torch.no_grad():
        assert largest_relative(run("f64", IDS).logits, mistaken(IDS)) > 0.1


def test_gradients() -> None:
    """Through the mapping, of the loss that training minimises, by way of some scalar of the logits."""
    mine, theirs = mini("f64"), run("f64", IDS).logits
    assert gradients_differ(llama("f64"), tables.hf(CONFIG), mine, mine(IDS), theirs, {}) < GRADIENT_BAR


def test_training_reads_all_at_once_and_predicts_the_next() -> None:
    """R2, 3.1: input "I like apples", target "like apples <END>". One masked pass gives the mean of what each prefix,
    read alone, says of the token that follows it; transformers shifts the labels by itself.
    """
    inputs, targets = IDS[:, :-1], IDS[:, 1:]
    with unchecked(), torch.no_grad():
        one_pass = nn.functional.cross_entropy(mini("f64")(inputs).flatten(0, 1), targets.flatten())
        of_prefixes = [mini("f64")(inputs[:, : i + 1])[:, -1] for i in range(inputs.shape[1])]  # each as (b, v)
        log_p = torch.stack(of_prefixes, 1).log_softmax(-1).gather(-1, targets[..., None])
        shifted = language_model_loss(mini("f64")(IDS), IDS)
        theirs = run("f64", IDS, labels=IDS).loss
    for loss in (-log_p.mean(), shifted, theirs):
        assert largest_relative(loss, one_pass) < BAR
    assert one_pass > 1  # something is left to learn


@pytest.mark.parametrize("sizes", [(1,) * 17, (5, 1, 1, 4, 6)], ids=["steps", "chunks"])
def test_inference_step_by_step_equals_one_pass(sizes: tuple[int, ...]) -> None:
    held = mini("f64").new_cache()
    with unchecked(), torch.no_grad():
        steps = [mini("f64")(part, cache=held) for part in IDS.split(list(sizes), -1)]
        assert largest_relative(torch.cat(steps, 1), mini("f64")(IDS)) < BAR


@pytest.mark.parametrize("precision", ["f64", "f32"])
def test_it_writes_what_llama_writes(precision: str) -> None:
    prompt = Batch(name="prompt", inputs={"ids": IDS[:, :5]})
    with unchecked():
        found = generate(mini(precision), IDS[:, :5], n_new=12).tokens
    assert found.tolist() == hf.generate(llama(precision), precision, prompt, 12).sequences.tolist()
    assert len(set(found.flatten().tolist())) > 3


# As printed


def printed(precision: str) -> tuple[Any, Any]:
    """The module of R2's classes, and one of them with our weights. Skipped without its packages."""
    for name in ("rotary_embedding_torch", "x_transformers"):
        pytest.importorskip(name, reason=f"{name} is not installed: it comes with pip install '.[twins]'")
    from parity_tests import printed_mini_llama as seed

    twin = seed.MiniLlama(CONFIG.vocab_size, CONFIG.d_model, CONFIG.n_layers, CONFIG.n_heads)
    mine = mini(precision)
    state = plan(tables.printed(CONFIG), parameters_of(mine)).backward(parameters_of(mine))
    frequencies = {name: t for name, t in twin.state_dict().items() if name.endswith("rope.freqs")}
    twin.load_state_dict({**state, **frequencies})
    return seed, twin.to(DTYPES[precision]).eval()


def causal() -> Tensor:
    """As R2 wants it: 1 where a token may look, (b, s, s)."""
    return torch.ones(IDS.shape[1], IDS.shape[1]).tril().expand(len(IDS), -1, -1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_is_what_r2_prints(precision: str, check: Judge) -> None:
    _, twin = printed(precision)
    with torch.no_grad():
        check("logits", twin(IDS, causal()), mini(precision)(IDS), mini("f64")(IDS))


def test_what_r2_prints_goes_into_a_llama() -> None:
    """From its names to ours and on to the hub's, with the frequencies dropped: bit for bit what the Llama has."""
    _, twin = printed("f32")
    mine = parameters_of(mini("f32"))
    ours = plan(tables.printed(CONFIG), mine).forward(twin.state_dict())
    back = plan(tables.hf(CONFIG), mine).backward(ours)
    assert back.keys() == llama("f32").state_dict().keys()
    assert all(torch.equal(back[name], t) for name, t in llama("f32").state_dict().items())


def test_word_for_word_it_has_no_positions() -> None:
    """The slip: without rotation a token sees a set. Two earlier tokens change places, and the last one does not notice."""
    seed, twin = printed("f64")
    swapped = IDS[:, [1, 0, *range(2, IDS.shape[1])]]
    with torch.no_grad():
        assert largest_relative(twin(swapped)[:, -1], twin(IDS)[:, -1]) > 1e-3
        for block in twin.blocks:
            block.attn.__class__ = seed.UnmendedAttention
        assert largest_relative(twin(swapped)[:, -1], twin(IDS)[:, -1]) < BAR
