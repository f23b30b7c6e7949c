"""Pages of keys and values for texts that share forward passes: transformers' paged cache with Penstock's own steps.

The library's continuous batching provides the cache, its allocators and the packing of texts of any lengths into one
pass; the attention of its networks reads and writes the pages. The library's thread, queue and scheduler are not used:
see docs/decisions/0033.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache, group_layers_by_attn_type
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState
from transformers.generation.continuous_batching.utils import find_head_dim, find_num_key_value_heads

from penstock.errors import ModelUnavailable, OutOfMemory, PenstockError, ProcessorFailed
from penstock.workers.engine.torch.device import TorchDevice, torch_errors

#: Tokens of a page.
PAGE_TOKENS = 32
#: Largest pass in tokens, unless more texts grow in it; longer prompts are read in several passes.
STEP_TOKENS = 512

#: Alignment of the library's sectors in bytes.
_ALIGNED_BYTES = 128
_ALONE = "leave out `options.batching`"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Place:
    """A text's place for pages, which are freed when the last reference to the place is gone."""

    name: str
    #: Largest number of tokens of the text.
    tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a text that a pass reads, after tokens whose keys and values are cached."""

    place: Place
    #: Number of tokens before the chunk.
    start: int
    tokens: Sequence[int]
    #: True: the text ends here, and the pass returns logits of the next token.
    last: bool


class Pages:
    """The pages of one network's texts. Any thread may call `place`, only the stepping thread anything else."""

    def __init__(self, network: Any, *, texts: int, tokens: int) -> None:
        """Allocate memory for so many tokens, of at most so many texts in one pass."""
        config = _config(texts, tokens)
        usual = GenerationConfig(do_sample=False, eos_token_id=-1)  # type: ignore[no-untyped-call]
        manager = network.init_continuous_batching(usual, config)
        resolved, text = manager.continuous_batching_config, network.config.get_text_config()
        self._cache = _Cache(
            config=text,
            continuous_batching_config=resolved,
            device=network.device,
            distributed_helper=manager.distributed_helper,
            dtype=network.dtype,
            model_supports_logits_to_keep=network._supports_logits_to_keep(),
        )
        self._inputs = ContinuousBatchingIOs(
            cache=self._cache,
            config=text,
            continuous_batching_config=resolved,
            device=network.device,
            model_dtype=network.dtype,
            logit_processor=manager.logit_processor,
        )
        self._processors = manager.logit_processor
        self._network = network
        self._numbers = itertools.count()
        #: Names of places without references; any thread may append one.
        self._left: deque[str] = deque()
        #: Number of cached tokens, by the names of places with pages.
        self._kept: dict[str, int] = {}
        self.step_tokens: int = config.max_batch_tokens
        self.memory_bytes = _bytes((self._cache.cache_tensor, *vars(self._inputs).values()))

    @property
    def free_share(self) -> float:
        """The free share of all pages, from 0 to 1."""
        self._reclaim()
        return float(self._cache.compute_free_capacity())

    def capacity(self, most: int | None) -> int:
        """Return the largest length of a single text, at most `most`; call while no text has pages."""
        if most is not None and self._cache.can_store_request_tokens(RequestState("", []), most, dry_run=True):
            return most
        return int(infer_max_single_request_tokens(self._cache))

    def place(self, tokens: int) -> Place:
        """Return a place, without pages yet, for a text that grows to so many tokens."""
        place = Place(str(next(self._numbers)), tokens)
        weakref.finalize(place, self._left.append, place.name).atexit = False
        return place

    def has(self, place: Place) -> bool:
        """Return True if a text has its pages."""
        return place.name in self._kept

    def allot(self, place: Place) -> bool:
        """Give a text all pages that it will ever need; return False if too few pages are free."""
        self._reclaim()
        if not self._cache.can_store_request_tokens(RequestState(place.name, []), place.tokens):
            return False
        self._kept[place.name] = 0
        return True

    def kept(self, place: Place) -> int:
        """Return the number of a text's cached tokens."""
        return self._kept.get(place.name, 0)

    def free(self, place: Place) -> None:
        """Free a text's pages."""
        self._free(place.name)

    def read(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return the logits after the chunks that end their texts, float32 (texts, vocabulary), in order.

        After an error no tokens of these texts count as cached: with sliding attention a failed pass has overwritten
        some of them.
        """
        for chunk in chunks:
            self._kept[chunk.place.name] = 0
        logits = self._pass(chunks)
        for chunk in chunks:
            self._kept[chunk.place.name] = chunk.start + len(chunk.tokens)
        return logits

    def close(self) -> None:
        """Free the memory."""
        del self._cache, self._inputs, self._processors, self._network

    def layers(self) -> frozenset[int]:
        """Return the indices of the network's layers that used the pages."""
        return frozenset(self._cache.used)

    def _pass(self, chunks: Sequence[Chunk]) -> Tensor:
        limit = self._cache.read_cache_limit
        self._inputs.prepare_batch_tensors(
            requests_in_batch=[_request(chunk) for chunk in chunks],
            logits_processors=self._processors,
            use_decode_fast_path=False,
            num_q_tokens=sum(len(chunk.tokens) for chunk in chunks),
            max_kv_read=sum(chunk.start if limit is None else min(chunk.start, limit) for chunk in chunks),
            use_padding=False,
        )
        arguments: Mapping[str, Any] = self._inputs.get_model_kwargs()
        ends = arguments["logits_indices"][: sum(chunk.last for chunk in chunks)]
        if self._network._supports_logits_to_keep():
            logits: Tensor = self._network(**arguments, logits_to_keep=ends).logits[0]
        else:
            logits = self._network(**arguments).logits[0, ends]
        # Attention multiplies other texts' values by zero, and NaN times zero is NaN: all texts of the pass have NaN.
        if bool(logits.isnan().any()):
            raise ProcessorFailed("the network's logits are not numbers (NaN)")
        return logits.float()

    def _reclaim(self) -> None:
        while self._left:
            self._free(self._left.popleft())
        self._cache.pool.try_to_free_sectors()

    def _free(self, name: str) -> None:
        if self._kept.pop(name, None) is not None:
            self._cache.free_blocks(name, no_cache=True)


def open_pages(network: Any, device: TorchDevice, *, texts: int, tokens: int, vocabulary: int) -> Pages:
    """Return the pages of a network on its device; raise `ModelUnavailable` if its answers differ with pages."""
    ids = [vocabulary * part // 7 for part in range(1, 7)]
    with _refusals(network, tokens), device.running(grows=True):
        expected = network(input_ids=torch.tensor([ids[:4]], device=device.device)).logits[0, -1].float()
    with _refusals(network, tokens):
        pages = Pages(network, texts=texts, tokens=tokens)
        with device.running(grows=True):
            found = _tried(pages, ids)
    agrees = float((found - expected).abs().max() / expected.abs().max()) <= _tolerance(network)
    if not agrees or pages.layers() != frozenset(range(network.config.get_text_config().num_hidden_layers)):
        raise ModelUnavailable(f"{type(network).__name__} computes other logits where texts share a pass: {_ALONE}")
    return pages


def _tried(pages: Pages, ids: Sequence[int]) -> Tensor:
    """Read four tokens in two passes, the first beside another text; return the logits of the next token."""
    ours, others = pages.place(4), pages.place(2)
    if not (pages.allot(ours) and pages.allot(others)):
        raise ModelUnavailable("`options.cache_tokens` has no room for two texts")
    pages.read([Chunk(others, 0, ids[4:], last=True), Chunk(ours, 0, ids[:3], last=False)])
    logits = pages.read([Chunk(ours, 3, ids[3:4], last=True)])[0]
    pages.free(ours)
    pages.free(others)
    return logits


def _tolerance(network: Any) -> float:
    """Return the allowed difference of logits from the network's usual pass, as a share of the largest logit.

    With inputs of layers in eight bits, the usual pass in two parts differs by 0.01 from the pass in one.
    """
    return 1e-3 if network.dtype == torch.float32 and not getattr(network, "is_quantized", False) else 0.05


def pages_bytes(config: Any, *, texts: int, tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of the pages of a network with this config: the cache, and the masks and indices of a pass.

    The cache is split into sectors among the kinds of attention; the library adds two sectors of its own.
    """
    page: int = 2 * find_num_key_value_heads(config) * find_head_dim(config) * dtype.itemsize * PAGE_TOKENS
    kinds = [len(layers) * page for layers in group_layers_by_attn_type(config).values()]
    sector = math.lcm(*kinds, _ALIGNED_BYTES)
    sectors: int = max(1, -(-_blocks(tokens) * config.num_hidden_layers * page // sector))
    step = _step_tokens(texts)
    read = max(sectors * sector // kind for kind in kinds) * PAGE_TOKENS + step
    return (sectors + 2) * sector + len(kinds) * read * (step * dtype.itemsize + torch.int64.itemsize)


class _Cache(PagedAttentionCache):
    """The library's cache, which also records the layers that used it: some networks ignore the cache."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self.used: set[int] = set()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        self.used.add(layer_idx)
        kept: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, kwargs)
        return kept


def _config(texts: int, tokens: int) -> Any:
    return ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=_blocks(tokens),
        max_batch_tokens=_step_tokens(texts),
        max_requests_per_batch=texts,
        max_blocks_per_request=0,
        # With sharing, the time of a prompt would reveal another tenant's prompt.
        allow_block_sharing=False,
        use_async_batching=False,
        use_cuda_graph=False,
        # Switching would search the hub for kernels.
        auto_switch_to_flash=False,
    )


def _blocks(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)


def _step_tokens(texts: int) -> int:
    return max(STEP_TOKENS, texts)


def _request(chunk: Chunk) -> FutureRequestState:
    tokens = list(chunk.tokens)
    state = RequestState(chunk.place.name, [], tokens_to_process=tokens, position_offset=chunk.start)
    return FutureRequestState(state, chunk.last, {}, len(tokens))


@contextmanager
def _refusals(network: Any, tokens: int) -> Iterator[None]:
    """Turn any error of the library into `ModelUnavailable`: the library cannot batch the network."""
    try:
        with torch_errors():
            yield
    except OutOfMemory as error:
        raise OutOfMemory(f"no room for a cache of {tokens:,} tokens: `options.cache_tokens` may be less") from error
    except PenstockError:
        raise
    except Exception as error:
        raise ModelUnavailable(
            f"transformers cannot batch {type(network).__name__} continuously "
            f"({type(error).__name__}: {next(iter(str(error).splitlines()), '')}): {_ALONE}"
        ) from error


def _bytes(kept: Sequence[Any]) -> int:
    """Return the bytes of tensors, also in mappings; shared memory counts once."""
    tensors = [tensor for each in kept for tensor in (each.values() if isinstance(each, dict) else (each,))]
    stores = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, Tensor)]
    return sum({store.data_ptr(): store.nbytes() for store in stores}.values())
