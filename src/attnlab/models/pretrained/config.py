"""Read a checkpoint's config so that no field is passed over that might change a number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

from attnlab.core.errors import DataError, SpecError

HARMLESS = frozenset(
    {
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "return_dict",
        "return_dict_in_generate",
        "output_attentions",
        "output_scores",
        "output_hidden_states",
        "_name_or_path",
        "name_or_path",
        "torchscript",
        "gradient_checkpointing",
        "_attn_implementation",
        "attn_implementation",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "_commit_hash",
        "transformers.js_config",
        "unsloth_fixed",
        "unsloth_version",
        "neftune_noise_alpha",
        "output_past",
        "initializer_range",
        "initializer_factor",
        "init_std",
        "problem_type",
        "id2label",
        "label2id",
        "num_labels",
        "_num_labels",
        "task_specific_params",
        "finetuning_task",
        "tokenizer_class",
        "chunk_size_feed_forward",
        "use_bfloat16",
        "tf_legacy_loss",
        "classifier_dropout",
        "classif_dropout",
        "pretraining_tp",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "max_length",
        "min_length",
        "max_new_tokens",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "force_bos_token_to_be_generated",
        "remove_invalid_values",
        "suppress_tokens",
        "begin_suppress_tokens",
        "exponential_decay_length_penalty",
        "prefix",
        "bos_token_id",
        "eos_token_id",
        "sep_token_id",
        "decoder_start_token_id",
    }
)
"""Fields of any config that change no logit of a call in evaluation mode."""

ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' names of activations, and the lab's."""

KINDS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a word"),
    dict: ((dict,), "an object"),
    list: ((list,), "a list"),
}
"""What a field may be, by the type of its default, and in words."""


@final
class Config:
    """Hand out the fields of a checkpoint's ``config.json``, and know which were never asked for.

    Parameters
    ----------
    content : mapping
        The file.
    where : str
        What to call it in errors.
    stored : collection of str
        Names of the checkpoint's tensors.
    """

    def __init__(self, content: Mapping[str, Any], where: str, stored: Collection[str]) -> None:
        self._content, self._asked, self.where, self.stored = dict(content), set[str](), where, stored

    def take(self, name: str, default: Any = None) -> Any:
        """A field of the default's type; the default, which must be transformers', where it is left out or null."""
        self._asked.add(name)
        found = self._content.get(name)
        return default if found is None else self._checked(name, found, type(default))

    def need(self, name: str) -> int:
        """A size that must be there."""
        found = self.take(name)
        if found is None:
            raise SpecError(f"{self.where} has no '{name}'; a checkpoint of transformers says it")
        return self._checked(name, found, int)

    def _checked(self, name: str, found: Any, kind: type) -> Any:
        """A field, or an error where it is of another type."""
        kinds, word = KINDS.get(kind, ((object,), ""))
        if not isinstance(found, kinds) or (word and isinstance(found, bool) != (kind is bool)):
            raise DataError(f"{self.where} is damaged: '{name}' must be {word}; got {found!r}")
        return found

    def activation(self, name: str, default: str) -> str:
        """The lab's name of an activation."""
        found = self.take(name, default)
        if found not in ACTIVATIONS:
            raise self.no_part(name, found, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[found]

    def check_rest(self, fixed: Mapping[str, Any], harmless: Collection[str]) -> None:
        """Raise a `SpecError` that names each field that nothing read and that may change the numbers."""
        for name, wanted in fixed.items():
            if (found := self.take(name, wanted)) != wanted:
                raise self.no_part(name, found, repr(wanted))
        left = sorted(self._content.keys() - self._asked - HARMLESS - set(harmless))
        if left:
            shown = ", ".join(f"{name}={self._content[name]!r}" for name in left)
            raise SpecError(
                f"{self.where} has fields that are not known here and may change the numbers: {shown}; take out of the "
                "file what has no effect on the model's answers"
            )

    def no_part(self, name: str, found: Any, known: str) -> SpecError:
        """The error that a value of a field has no part here."""
        return SpecError(f"{self.where} has {name}={found!r}, which has no part here; known is {known}")
