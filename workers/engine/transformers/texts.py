"""Networks of texts: an embedding, or scores of labels. Texts of similar lengths share a batch, padded and masked.

On a CPU in float32 a text alone gets the same bits every time; other texts of its batch change the last bits only (they
are masked, but sums are taken in another order).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.pooling import pooling_of
from penstock.workers.engine.transformers.supported_types import ALONE, BATCHED, ways

#: Texts whose lengths are equal when rounded up to a multiple of this share a batch.
LENGTH_STEP = 32

#: Model types whose positions begin after the padding token's id, which leaves fewer positions.
_SHIFTED_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec-text", "roberta-prelayernorm"}
)


@dataclass(frozen=True, slots=True)
class SentText:
    """A text on its way to the device."""

    sent: Sent
    #: The number of tokens at the beginning that do not count in the pooling.
    skipped: int = 0
    #: The numbers of the text's parts; None: the network takes none, or all tokens are of the first part.
    types: Sent | None = None


#: Makes the name and the arrays of outputs from a network, its inputs, and the mask of the tokens that count.
Answer = Callable[[Any, Mapping[str, Tensor], Tensor], tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class TextRunner(NetworkRunner):
    """A network of texts: prompts have `input_ids`, int64 (T,), with special tokens.

    `token_type_ids`, int64 (T,) of 0 and 1, name the parts of a pair of texts. The first `prompt_tokens` [0] tokens are
    read by the network and left out of the pooling. Outputs have `embedding`, float32 (D,), or `logits`, float32
    (classes,).
    """

    answer: Answer
    vocabulary: int
    max_tokens: int | None
    #: Token of the padding; None: padding would change the answers, and the network takes one text at a time.
    padding: int | None = 0
    #: False for networks without a mask of attention.
    takes_mask: bool = True
    #: True where the network tells the parts of a pair apart.
    takes_types: bool = False
    #: Token whose number must be the same in all texts of a batch.
    counted: int | None = None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the rounded length: texts of similar lengths share a batch."""
        ids = prompt.data["input_ids"]
        ends = 0 if self.counted is None else int(np.count_nonzero(ids == self.counted))
        return -(-len(ids) // LENGTH_STEP), ends

    def admit(self, prompt: Prompt) -> SentText:
        """Return the token ids on their way to the device."""
        ids = checked_tokens(prompt.data.get("input_ids"), self.vocabulary, self.max_tokens)
        skipped = prompt.data.get("prompt_tokens", 0)
        if type(skipped) is not int or not 0 <= skipped < len(ids):
            raise ProcessorFailed("the network takes `prompt_tokens`, a whole number below that of all tokens")
        return SentText(self.device.send(ids), skipped, self._types(prompt.data.get("token_type_ids"), len(ids)))

    def step(self, states: Sequence[SentText]) -> Sequence[Done]:
        """Run the network once; without a token for padding once per text."""
        with self.device.running():
            if self.padding is None:
                return [done for state in states for done in self._run([state])]
            return self._run(states)

    def _types(self, types: Array | None, tokens: int) -> Sent | None:
        if types is None or not self.takes_types:
            return None
        if not isinstance(types, np.ndarray) or types.dtype != np.int64 or types.shape != (tokens,):
            raise ProcessorFailed("the network takes `token_type_ids`, an int64 array as long as `input_ids`")
        if not np.isin(types, (0, 1)).all():
            raise InvalidInput("`token_type_ids` are 0 and 1")
        return self.device.send(types)

    def _run(self, states: Sequence[SentText]) -> list[Done]:
        texts = [self.device.receive(state.sent) for state in states]
        mask = _padded([torch.ones_like(text) for text in texts], 0)
        inputs = {"input_ids": _padded(texts, self.padding or 0)}
        if self.takes_mask:
            inputs["attention_mask"] = mask
        if any(state.types is not None for state in states):
            types = [None if state.types is None else self.device.receive(state.types) for state in states]
            rows = [torch.zeros_like(text) if one is None else one for one, text in zip(types, texts, strict=True)]
            inputs["token_type_ids"] = _padded(rows, 0)
        counted = mask.clone()
        for row, state in zip(counted, states, strict=True):
            row[: state.skipped] = 0
        name, answers = self.answer(self.network, inputs, counted)
        return [Done(Output({name: array})) for array in arrays_of(answers)]


def load_text_embedder(directory: HubDirectory) -> Runner:
    """Load a network that returns `embedding`; see `pooling_of` and `load_image_embedder` for its options."""
    model, pooling = directory.model, pooling_of(directory)
    network = directory.load("AutoModel", unused=lambda name: name.startswith("pooler."))

    def embed(network: Any, inputs: Mapping[str, Tensor], counted: Tensor) -> tuple[str, Tensor]:
        return "embedding", pooling(network(**inputs).last_hidden_state, counted)

    runner = _runner(directory, network, embed)
    pooling.layers.requires_grad_(requires_grad=False).to(runner.device.device)
    return with_output_cache(runner, model)


def load_text_classifier(directory: HubDirectory) -> Runner:
    """Load a network that returns `logits`."""
    network = directory.load("AutoModelForSequenceClassification")
    config = network.config
    padding = getattr(config.get_text_config(), "pad_token_id", None)
    takes_types = "token_type_ids" in inspect.signature(network.forward).parameters
    return _runner(
        directory,
        network,
        lambda network, inputs, counted: ("logits", network(**inputs).logits.float()),  # noqa: ARG005
        padding,
        takes_types=takes_types and getattr(config, "type_vocab_size", 0) > 1,
        # Networks with a decoder read the vector at the last of these tokens, and count them over the whole batch.
        counted=config.eos_token_id if config.is_encoder_decoder else None,
    )


def _runner(
    directory: HubDirectory, network: Any, answer: Answer, padding: int | None = 0, **fields: Any
) -> TextRunner:
    device = TorchDevice.of(directory.model)
    device.place(network)
    config = network.config.get_text_config()
    takes = inspect.signature(network.forward).parameters
    takes_mask = "attention_mask" in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values())
    seen = ways(directory.task, str(directory.config["model_type"]))
    return TextRunner(
        network,
        device,
        answer=answer,
        max_batch=directory.model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=config.vocab_size,
        max_tokens=max_tokens_of(config),
        padding=None if ALONE in seen and BATCHED not in seen else padding,
        takes_mask=takes_mask,
        **fields,
    )


def checked_tokens(ids: Array, vocabulary: int, max_tokens: int | None) -> Array:
    """Return checked token ids; raise `InvalidInput` for wrong ids or lengths, `ProcessorFailed` for other values."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise ProcessorFailed("the network takes `input_ids`, an int64 array (tokens,)")
    if not len(ids):
        raise InvalidInput("the network takes no empty text")
    if max_tokens is not None and len(ids) > max_tokens:
        raise InvalidInput(f"the network takes at most {max_tokens} tokens, the prompt has {len(ids)}")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise InvalidInput(f"the network knows the tokens 0 to {vocabulary - 1}; the prompt has others")
    return ids


def _padded(rows: Sequence[Tensor], value: int) -> Tensor:
    """Return rows (T,) of numbers as one tensor (N, T), padded at their ends."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def max_tokens_of(config: Any) -> int | None:
    """Return the tokens of the longest text that a network of texts takes; None without a bound."""
    places = getattr(config, "max_position_embeddings", None)
    if not isinstance(places, int) or places < 1:
        return None
    shifted = config.model_type in _SHIFTED_POSITIONS
    return places - (config.pad_token_id + 1) if shifted else places
