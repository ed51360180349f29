"""The settings of generation under the names that users give them, and the order in which they act."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from reference_impl import logits_processors as do


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Each does nothing unless it is given.

    eos_token_id: what ends a text; pad_token_id: what fills a row that has ended. exponential_decay_length_penalty: how many
    new tokens are free of it, and its factor a token. The tails, from temperature to eta_cutoff, are cut where tokens are
    drawn, that is under do_sample. length_penalty: the exponent of the length by which a beam's score is divided.
    early_stopping: whether a row is done when it has as many ended beams as are kept; "never": not before no longer text
    could be better.
    """

    eos_token_id: Sequence[int] = ()
    pad_token_id: int = 0

    repetition_penalty: float = 1.0
    encoder_repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    sequence_bias: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    bad_words_ids: Sequence[Sequence[int]] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    renormalize_logits: bool = False

    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False


@dataclass(frozen=True, kw_only=True)
class Written:
    """A text that is being written. ids (b, t): everything so far, `prompt` tokens of it given and `n_new` to follow these;
    real: False for padding. source: what an encoder read; of a model without one, the prompt.
    """

    ids: Int[Tensor, "b t"]
    real: Bool[Tensor, "b t"]
    source: Int[Tensor, "b u"]
    source_real: Bool[Tensor, "b u"]
    prompt: int
    n_new: int

    @property
    def length(self) -> int:
        """Tokens so far, the prompt and its padding included."""
        return self.ids.shape[1]

    def and_then(self, step: Int[Tensor, "b s"]) -> "Written":
        """The text with more tokens at its end."""
        real = torch.ones_like(step, dtype=torch.bool)
        return replace(self, ids=torch.cat([self.ids, step], -1), real=torch.cat([self.real, real], -1))


def processed(scores: Float[Tensor, "b v"], text: Written, settings: Settings) -> Float[Tensor, "b v"]:
    """The scores that the next token is chosen by."""
    scores = _lengths(_words(_repetitions(scores, text, settings), text, settings), text, settings)
    if settings.do_sample:
        scores = _tails(scores, settings)
    return scores.log_softmax(-1) if settings.renormalize_logits else scores


def _repetitions(scores: Tensor, text: Written, given: Settings) -> Tensor:
    own, source = (text.ids, text.real), (text.source, text.source_real)
    if given.encoder_repetition_penalty != 1.0:  # its tokens become likelier
        occurs = do.occurring(*source, scores.shape[-1])
        scores = do.repetition_penalty(scores, occurs, 1 / given.encoder_repetition_penalty)
    if given.repetition_penalty != 1.0:
        occurs = do.occurring(*own, scores.shape[-1])
        scores = do.repetition_penalty(scores, occurs, given.repetition_penalty)
    if given.no_repeat_ngram_size:
        scores = do.no_repeated_ngrams(scores, *own, *own, given.no_repeat_ngram_size)
    if given.encoder_no_repeat_ngram_size:
        scores = do.no_repeated_ngrams(scores, *own, *source, given.encoder_no_repeat_ngram_size)
    return scores


def _words(scores: Tensor, text: Written, given: Settings) -> Tensor:
    for sequence, bias in given.sequence_bias.items():
        scores = do.biased_sequence(scores, text.ids, text.real, sequence, bias)
    for word in given.bad_words_ids:
        if not (len(word) == 1 and word[0] in given.eos_token_id):  # the end of a text is no word
            scores = do.biased_sequence(scores, text.ids, text.real, word, do.BANNED)
    return scores


def _lengths(scores: Tensor, text: Written, given: Settings) -> Tensor:
    written = text.length - text.prompt
    if text.length < given.min_length or written < given.min_new_tokens:
        scores = do.without(scores, given.eos_token_id)
    if given.forced_bos_token_id is not None and text.length == 1:
        scores = do.forced(scores, [given.forced_bos_token_id])
    if given.forced_eos_token_id is not None and written == text.n_new - 1:
        last = given.forced_eos_token_id
        scores = do.forced(scores, [last] if isinstance(last, int) else last)
    if given.remove_invalid_values:
        scores = do.finite(scores)
    if given.exponential_decay_length_penalty is not None:
        free, factor = given.exponential_decay_length_penalty
        scores = do.ending_sooner(scores, given.eos_token_id, factor, written - free)
    scores = do.without(scores, given.suppress_tokens)
    first = int(text.prompt == 1 and given.forced_bos_token_id is not None)  # of the tokens that nothing forces
    return do.without(scores, given.begin_suppress_tokens) if written == first else scores


def _tails(scores: Tensor, given: Settings) -> Tensor:
    scores = scores / given.temperature
    if given.top_k:
        scores = do.top_k(scores, given.top_k)
    for cut, value, nothing in (
        (do.top_p, given.top_p, 1.0),
        (do.min_p, given.min_p, 0.0),
        (do.typical_p, given.typical_p, 1.0),
        (do.epsilon_cutoff, given.epsilon_cutoff, 0.0),
        (do.eta_cutoff, given.eta_cutoff, 0.0),
    ):
        if value != nothing:
            scores = cut(scores, value)
    return scores
