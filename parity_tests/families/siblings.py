"""The other classes that transformers has for a family, as data that families share: what they read, and what lies on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from parity_tests.families.tasks import (
    BARE,
    CHOICE,
    CHOICE_BY_SLOT,
    NEXT_SENTENCE,
    NEXT_TOKEN,
    PRETRAINING,
    SEQUENCE,
    SPAN,
    TOKENS,
    answers,
    choices,
    choices_by_slot,
    end_of_source,
    in_slot,
    last,
    source,
    source_as_answer,
    text,
)
from parity_tests.harness.record import Sibling
from reference_impl.heads import LinearHead, TwoLayerHead

Siblings = dict[str, Sibling | str]

HEAD_DROPOUT = 0.35
"""`classifier_dropout` of the configs made here."""


def linear(
    dropout: float | str = 0.0, *, bias: bool = True, n_out: int | None = None
) -> Callable[[Any, int], nn.Module]:
    """dropout: a probability, or the field of the config that has it. n_out: where it is not the number of labels."""

    def make(config: Any, n_labels: int) -> nn.Module:
        p = getattr(config, dropout) if isinstance(dropout, str) else dropout
        return LinearHead(config.d_model, n_out or n_labels, bias=bias, dropout=p)

    return make


def two_layers(config: Any, n_labels: int) -> nn.Module:
    return TwoLayerHead(config.d_model, n_labels, dropout=HEAD_DROPOUT)


def sequences(site: str, tensor: str, *, bias: bool = False) -> Sibling:
    """A decoder's last real token."""
    head = linear(bias=bias)
    return Sibling(task=SEQUENCE, feed=text, site=site, pick=last, head=head, tensors={"proj": tensor}, n_labels=(3, 1))


def tokens(site: str, tensor: str, dropout: float | str = HEAD_DROPOUT, **read: Any) -> Sibling:
    return Sibling(task=TOKENS, site=site, head=linear(dropout), tensors={"proj": tensor}, **{"feed": text, **read})


def spans(site: str, **read: Any) -> Sibling:
    head = linear(n_out=2)
    return Sibling(
        task=SPAN, site=site, head=head, tensors={"proj": "qa_outputs"}, n_labels=(2,), **{"feed": text, **read}
    )


def decoders(prefix: str, *, tokens_too: bool = True, spans_too: bool = True) -> Siblings:
    """Of a family built like Llama."""
    found: Siblings = {
        **bare(prefix, "norm"),
        f"{prefix}ForSequenceClassification": sequences("norm", "score"),
    }
    if tokens_too:
        found[f"{prefix}ForTokenClassification"] = tokens("norm", "score")
    if spans_too:
        found[f"{prefix}ForQuestionAnswering"] = spans("norm")
    return found


def encoders(prefix: str, variant: str, dropout: float | str) -> Siblings:
    """Of BERT and FNet. variant: whose checkpoint has a pooler. dropout: before their classifiers."""
    pair = {"proj": "cls.seq_relationship"}
    pooled: dict[str, Any] = {"site": "pooler", "variant": variant}
    classifier = {"proj": "classifier"}
    return {
        f"{prefix}Model": Sibling(
            task=BARE, feed=text, site="{last}", also={"pooler_output": "pooler"}, variant=variant
        ),
        f"{prefix}ForSequenceClassification": Sibling(
            task=SEQUENCE, feed=text, head=linear(dropout), tensors=classifier, n_labels=(3, 1), **pooled
        ),
        f"{prefix}ForTokenClassification": tokens("{last}", "classifier", dropout, variant=variant),
        f"{prefix}ForQuestionAnswering": spans("{last}", variant=variant),
        f"{prefix}ForMultipleChoice": Sibling(
            task=CHOICE, feed=choices, head=linear(dropout, n_out=1), tensors=classifier, **pooled
        ),
        f"{prefix}ForNextSentencePrediction": Sibling(
            task=NEXT_SENTENCE, feed=text, head=linear(n_out=2), tensors=pair, **pooled
        ),
        f"{prefix}ForPreTraining": Sibling(
            task=PRETRAINING,
            feed=text,
            head=linear(n_out=2),
            tensors=pair,
            also={"prediction_logits": "mlm_head"},
            **pooled,
        ),
        f"{prefix}Layer": "a block of every model",
    }


def without_head(prefix: str) -> Siblings:
    """Both sides."""
    also = {"encoder_last_hidden_state": "encoder"}
    return {f"{prefix}Model": Sibling(task=BARE, feed=text, site="decoder", also=also)}


def over_source(prefix: str, under: str = "") -> Siblings:
    """Heads on what a decoder makes of the source itself. under: of the trunk in the file of one for sequences."""
    head = {"in_proj": "classification_head.dense", "out_proj": "classification_head.out_proj"}
    return {
        f"{prefix}ForSequenceClassification": Sibling(
            task=SEQUENCE,
            feed=source_as_answer,
            site="decoder",
            pick=end_of_source,
            head=two_layers,
            tensors=head,
            n_labels=(3, 1),
            under=under,
        ),
        f"{prefix}ForQuestionAnswering": spans("decoder", feed=source_as_answer),
    }


def encoder_alone(prefix: str) -> Siblings:
    return {
        f"{prefix}EncoderModel": Sibling(task=BARE, feed=source, part="encoder", site=""),
        f"{prefix}ForTokenClassification": tokens("", "classifier", part="encoder", feed=source, under="transformer"),
    }


def decoder_alone(prefix: str, variant: str = "") -> Siblings:
    """Without attention to a memory, as none is given. Its loss takes a label for the token itself and not for the next."""
    copies = {"model.decoder.embed_tokens.weight": "model.shared.weight"}
    read: dict[str, Any] = {"feed": answers, "part": "decoder", "site": "", "variant": variant}
    return {f"{prefix}ForCausalLM": Sibling(task=NEXT_TOKEN, head="lm_head", copies=copies, **read)}


def bare(prefix: str, site: str) -> Siblings:
    """The trunk alone."""
    return {f"{prefix}Model": Sibling(task=BARE, feed=text, site=site)}


GPT2 = {
    **bare("GPT2", "norm"),
    "GPT2ForSequenceClassification": sequences("norm", "score"),
    "GPT2ForTokenClassification": tokens("norm", "classifier"),
    "GPT2ForQuestionAnswering": spans("norm"),
    "GPT2DoubleHeadsModel": Sibling(
        task=CHOICE_BY_SLOT,
        feed=choices_by_slot,
        site="norm",
        also={"logits": "lm_head"},
        pick=in_slot,
        head=linear(0.1, n_out=1),
        tensors={"proj": "multiple_choice_head.summary"},
    ),
}
