"""Grouping tokens into words, for the times of words. Pure.

The rules are those of https://github.com/openai/whisper/blob/main/whisper/tokenizer.py (`split_to_word_tokens`), with
punctuation attached to its word, as in transformers' pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import punctuation

#: Languages written without spaces: each whole character counts as a word.
_UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
#: Punctuation that belongs to the next word, and to the previous word.
_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,\uff0c!\uff01?\uff1f:\uff1a”)]}、"  # with the wide forms of , ! ? :
#: The character that decoders write for invalid bytes.
_BROKEN = "\ufffd"

#: A text and the range of its tokens.
Span = tuple[str, range]


def words_of(tokens: Sequence[int], decode: Callable[[Sequence[int]], str], language: str) -> list[Span]:
    """Return the words of tokens and their ranges; together they are the whole decoded text."""
    spans = _characters(tokens, decode)
    if language not in _UNSPACED:
        spans = _spaced(spans)
    return _with_closing(_with_opening(spans))


def _characters(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Span]:
    """Return the shortest runs of tokens that decode to whole characters."""
    whole, spans = decode(tokens), list[Span]()
    begin = letters = 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begin:end])
        place = letters + text.find(_BROKEN)
        if _BROKEN not in text or place >= len(whole) or whole[place] == _BROKEN:
            spans.append((text, range(begin, end)))
            begin, letters = end, letters + len(text)
    if begin < len(tokens):
        spans.append((decode(tokens[begin:]), range(begin, len(tokens))))
    return spans


def _spaced(spans: Sequence[Span]) -> list[Span]:
    """Join each text without a leading space, except punctuation, with the previous one."""
    words = list[Span]()
    for text, places in spans:
        if words and not text.startswith(" ") and text.strip() not in punctuation:
            before, begun = words.pop()
            words.append((before + text, range(begun.start, places.stop)))
        else:
            words.append((text, places))
    return words


def _with_opening(spans: Sequence[Span]) -> list[Span]:
    """Join opening punctuation with the next word."""
    words = list[Span]()
    for text, places in reversed(spans):
        if words and text.startswith(" ") and text.strip() in _OPENING:
            behind, ended = words.pop()
            words.append((text + behind, range(places.start, ended.stop)))
        else:
            words.append((text, places))
    return words[::-1]


def _with_closing(spans: Sequence[Span]) -> list[Span]:
    """Join closing punctuation with the previous word."""
    words = list[Span]()
    for text, places in spans:
        if words and not words[-1][0].endswith(" ") and text in _CLOSING:
            before, begun = words.pop()
            words.append((before + text, range(begun.start, places.stop)))
        else:
            words.append((text, places))
    return words
