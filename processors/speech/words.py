"""Which tokens make a word, so that each has its own time. Pure.

The rules are those of https://github.com/openai/whisper/blob/main/whisper/tokenizer.py (`split_to_word_tokens`), with
punctuation at the word that it belongs to, as transformers' pipeline has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import punctuation

#: Languages that are written without spaces: there each character that is whole counts for a word.
_UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
#: What goes with the word behind it, and with the word before it.
_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,\uff0c!\uff01?\uff1f:\uff1a”)]}、"  # with the wide forms of , ! ? :
#: What decoders write for bytes that are no character.
_BROKEN = "\ufffd"

#: A text, and which tokens it is made of.
Piece = tuple[str, range]


def words_of(tokens: Sequence[int], decode: Callable[[Sequence[int]], str], language: str) -> list[Piece]:
    """Return the words of tokens and their places; together they are all that is decoded."""
    pieces = _characters(tokens, decode)
    if language not in _UNSPACED:
        pieces = _spaced(pieces)
    return _behind(_before(pieces))


def _characters(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Piece]:
    """Return the shortest runs of tokens that are whole characters."""
    whole, pieces = decode(tokens), list[Piece]()
    begin = letters = 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begin:end])
        place = letters + text.find(_BROKEN)
        if _BROKEN not in text or place >= len(whole) or whole[place] == _BROKEN:
            pieces.append((text, range(begin, end)))
            begin, letters = end, letters + len(text)
    if begin < len(tokens):
        pieces.append((decode(tokens[begin:]), range(begin, len(tokens))))
    return pieces


def _spaced(pieces: Sequence[Piece]) -> list[Piece]:
    """Join what has no space before it, and is no punctuation, with what is before it."""
    words = list[Piece]()
    for text, places in pieces:
        if words and not text.startswith(" ") and text.strip() not in punctuation:
            before, begun = words.pop()
            words.append((before + text, range(begun.start, places.stop)))
        else:
            words.append((text, places))
    return words


def _before(pieces: Sequence[Piece]) -> list[Piece]:
    """Join opening punctuation with the word behind it."""
    words = list[Piece]()
    for text, places in reversed(pieces):
        if words and text.startswith(" ") and text.strip() in _OPENING:
            behind, ended = words.pop()
            words.append((text + behind, range(places.start, ended.stop)))
        else:
            words.append((text, places))
    return words[::-1]


def _behind(pieces: Sequence[Piece]) -> list[Piece]:
    """Join closing punctuation with the word before it."""
    words = list[Piece]()
    for text, places in pieces:
        if words and not words[-1][0].endswith(" ") and text in _CLOSING:
            before, begun = words.pop()
            words.append((before + text, range(begun.start, places.stop)))
        else:
            words.append((text, places))
    return words
