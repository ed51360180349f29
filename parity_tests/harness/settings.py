"""Which settings of generation are compared, and with what values; and why the others are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

LENGTH = 9
"""Tokens of a prompt."""


@dataclass(frozen=True)
class Free:
    """What a model writes when nothing is set: settings are made of that, so that they change something.

    tokens: the first row's. last: the prompt's last. pad: what no row is likely to go on with.
    """

    tokens: list[int]
    last: int
    pad: int

    @property
    def eos(self) -> int:
        """So that a row which goes on as it would has three tokens, or all of them where it repeats itself."""
        return self.tokens[2] if self.tokens[2] not in self.tokens[:2] else self.absent

    @property
    def absent(self) -> int:
        """What ends no row that goes on as it would."""
        return next(token for token in range(len(self.tokens) + 2) if token not in (*self.tokens, self.pad))

    @property
    def word(self) -> int:
        """A token that does not end a text."""
        return next(token for token in self.tokens if token != self.eos)


Values = Callable[[Free], Mapping[str, Any]]


def just(**values: Any) -> Values:
    return lambda free: values


def drawn(**values: Any) -> Values:
    return lambda free: {"do_sample": True, "top_k": 0, **values}  # unset, transformers takes the 50 likeliest


def beams(**values: Any) -> Values:
    return lambda free: {"num_beams": 3, "num_return_sequences": 2, **values}


MANY = [token for token in range(100) if token % 5]
"""Tokens that end a text, so many that beams end at every step."""

SETTINGS: dict[str, Values] = {
    "repetition_penalty": just(repetition_penalty=1.3),
    "encoder_repetition_penalty": just(encoder_repetition_penalty=1.4),
    "no_repeat_ngram_size": just(no_repeat_ngram_size=2),
    "encoder_no_repeat_ngram_size": just(encoder_no_repeat_ngram_size=2),
    "sequence_bias": lambda free: {
        "sequence_bias": {(free.tokens[0],): -2.5, (free.last, free.tokens[0]): -1.5, (free.tokens[1], free.tokens[2]): 3.0}
    },
    "bad_words_ids": lambda free: {"bad_words_ids": [[free.last, free.tokens[0]], [free.tokens[1]], [free.eos]]},
    "min_length": lambda free: {"min_length": LENGTH + 4},
    "min_new_tokens": lambda free: {"min_new_tokens": 4},
    "forced_bos_token_id": just(forced_bos_token_id=3),
    "forced_eos_token_id": lambda free: {"forced_eos_token_id": [free.absent, free.word], "eos_token_id": [free.absent]},
    "remove_invalid_values": lambda free: {"remove_invalid_values": True, "bad_words_ids": [[free.word]]},
    "exponential_decay_length_penalty": lambda free: {
        "exponential_decay_length_penalty": (1, 1.5),
        "eos_token_id": [free.absent],
    },
    "suppress_tokens": lambda free: {"suppress_tokens": free.tokens[:2]},
    "begin_suppress_tokens": lambda free: {"begin_suppress_tokens": free.tokens[:1]},
    "begin_suppress_tokens.forced_bos": just(begin_suppress_tokens=[5, 6], forced_bos_token_id=3),
    "do_sample": drawn(),
    "temperature": drawn(temperature=0.7),
    "top_k": drawn(top_k=7),
    "top_p": drawn(top_p=0.8),
    "min_p": drawn(min_p=0.1),
    "typical_p": drawn(typical_p=0.6),
    "epsilon_cutoff": drawn(epsilon_cutoff=0.02),
    "eta_cutoff": drawn(eta_cutoff=0.03),
    "renormalize_logits": drawn(renormalize_logits=True, top_k=7),
    "num_beams": beams(),
    "num_return_sequences": beams(num_return_sequences=3),
    "length_penalty": beams(length_penalty=-2.0),
    "early_stopping": beams(early_stopping=True, length_penalty=2.0, eos_token_id=MANY),
    "early_stopping.never": beams(early_stopping="never", num_beams=2, length_penalty=2.0, eos_token_id=MANY),
    "as-chats": drawn(repetition_penalty=1.05, temperature=0.7, top_p=0.8, top_k=20),
    "as-summaries": lambda free: {
        "num_beams": 4,
        "length_penalty": 2.0,
        "early_stopping": True,
        "min_length": 3,
        "no_repeat_ngram_size": 3,
        "forced_bos_token_id": 3,
        "forced_eos_token_id": free.eos,
    },
    "as-translations": lambda free: {"num_beams": 6, "bad_words_ids": [[free.word]], "forced_eos_token_id": free.eos},
}
"""By the site's name, which begins with the field that it is about; what model hubs give together comes last."""

NOT_COMPARED = {
    "tokens, which the caller passes": "*_token_id",
    "how much is written, which the tests say": "max_length max_new_tokens",
    "what a call returns": "output_* return_dict_in_generate",
    "how it is computed": "use_cache cache_implementation cache_config max_cache_len return_legacy_cache compile_config "
    "disable_compile prefill_chunk_size low_memory use_mtp",
    "another model writes ahead, and no token changes": "is_assistant num_assistant_tokens* assistant_* target_lookbehind "
    "prompt_lookup_num_tokens max_matching_ngram_size speculation_type",
    "a clock, or text, which needs a tokenizer": "max_time stop_strings token_healing",
    "a second prompt, and no model here is trained for it": "guidance_scale",
    "marks text by a key, and says nothing of a model": "watermarking_config",
    "newer than the configs of these families, of which none has it": "top_h",
    "taken out of transformers, or about to be": "diversity_penalty num_beam_groups penalty_alpha dola_layers constraints "
    "force_words_ids",
    "who wrote the file": "transformers_version _from_model_config",
    "continuous batching, which is a server's": "*continuous_batching*",
}
"""Other fields of transformers' GenerationConfig, by the reason."""


LEAVE_SCORES = ("do_sample", "num_return_sequences", "early_stopping*", "as-*")
"""Sites whose own field need not change anything: what a drawn token is drawn from, how many texts come back, when to stop."""

SEE_PADDING = ("*repetition_penalty", "*no_repeat_ngram_size")
"""Fields that look at the text so far. transformers takes padding for text there, see `test_findings.py`: without any."""


def field_of(name: str) -> str:
    """The field that a site is about."""
    return name.partition(".")[0]


def is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name has one of these forms."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


COMPARED = frozenset(field for of in SETTINGS.values() for field in of(Free([0, 1, 2, 3, 4], 5, 6)))
"""Every field that some setting has."""


def reason_for(field: str) -> str:
    """Where a field of generation is compared, or why it is not; "" when nothing says so."""
    if field in COMPARED:
        return "generation reads it: compared in test_settings.py"
    found = (reason for reason, patterns in NOT_COMPARED.items() if is_one_of(field, tuple(patterns.split())))
    return next(found, "")
