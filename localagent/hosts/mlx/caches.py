"""Copying MLX prompt caches and restoring the copies.

Of mlx-lm's cache classes, KVCache can be cut at its end; ArraysCache (recurrent state) and RotatingKVCache
(sliding window) cannot, and are copied. A copy is restored bit for bit, and never changes: the cache gets new
arrays that share the copy's memory until they are written. If a model has caches of another class,
`Caches.known` is False: nothing is copied or cut, and every sequence is evaluated from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from localagent.hosts.mlx.library import Library


@dataclass(eq=False, slots=True, weakref_slot=True)
class Snapshot:
    """What caches held after `length` tokens: of every one its arrays and its counters, or None for one that
    can be cut. `entries` is None once the engine was closed.
    """

    length: int
    entries: tuple[Entry | None, ...] | None

    def arrays(self) -> Iterator[Any]:
        """Every array in it."""
        for entry in self.entries or ():
            yield from (array for array in (entry.arrays if entry else ()) if array is not None)


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of one cache."""

    arrays: tuple[Any, ...]
    counters: tuple[int, ...] = ()


class _Form(NamedTuple):
    """What is known of an array before it is computed."""

    shape: tuple[int, ...]
    dtype: Any


class Caches:
    """The caches of one model, for one sequence. `all` is what the model is given."""

    def __init__(self, lib: Library, model: Any) -> None:
        self._lib = lib
        self._model = model
        self.clear()
        self.known = all(type(cache) in self._kinds() for cache in self._flat)
        self.kinds = tuple(type(cache).__name__ for cache in self._flat)
        # MLX is lazy: this computes nothing, and tells every shape.
        self.vocabulary_size: int = model(lib.mx.array([[0]]), cache=self.all).shape[-1]
        self._forms = tuple(self._form(cache) for cache in self._flat) if self.known else ()
        self.clear()

    def clear(self) -> None:
        """Start again with empty caches."""
        self.all: list[Any] = self._lib.make_prompt_cache(self._model)
        self._flat = list(self._flatten(self.all))

    def close(self) -> None:
        """Let go of the model."""
        self._model, self.all, self._flat = None, [], []

    def evaluate(self) -> None:
        """Wait until the caches are computed."""
        self._lib.mx.eval([cache.state for cache in self.all])

    def copy(self, length: int, whole: bool) -> Snapshot:
        """What is needed to come back to here: everything, or what cannot be cut."""
        entries: list[Entry | None] = []
        for cache in self._flat if self.known else ():
            cuttable = isinstance(cache, self._lib.KVCache)
            entries.append(self._copy(cache) if whole or not cuttable else None)
        snapshot = Snapshot(length, tuple(entries))
        self._lib.mx.eval(list(snapshot.arrays()))
        return snapshot

    def can_put(self, snapshot: Snapshot, whole: bool) -> bool:
        """Whether `put` can go back to it: from anywhere, or only from a sequence that goes on from there."""
        entries = snapshot.entries
        if not self.known or entries is None or len(entries) != len(self._flat):
            return False
        for cache, entry in zip(self._flat, entries, strict=True):
            cuttable = isinstance(cache, self._lib.KVCache)
            if entry is None and (whole or not cuttable or cache.offset < snapshot.length):
                return False
        return True

    def put(self, snapshot: Snapshot) -> None:
        """Cut what can be cut and put back the rest."""
        lib = self._lib
        for cache, entry in zip(self._flat, snapshot.entries or (), strict=True):
            if entry is None:
                cache.trim(cache.offset - snapshot.length)
                continue
            # A cache writes into its arrays: it gets arrays of its own, which share the memory until then.
            arrays = [self._own(array) for array in entry.arrays]
            if isinstance(cache, lib.ArraysCache):
                cache.cache = arrays
            else:
                cache.keys, cache.values = arrays
                cache.offset = entry.counters[0]
                if isinstance(cache, lib.RotatingKVCache):
                    cache._idx = entry.counters[1]
        self.evaluate()

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot from a file has the shapes of this model's caches."""
        entries = snapshot.entries or ()
        return len(entries) == len(self._forms) and all(
            self._fits(entry, number, snapshot.length)
            if entry is not None
            else isinstance(self._flat[number], self._lib.KVCache)
            for number, entry in enumerate(entries)
        )

    def _fits(self, entry: Entry, number: int, length: int) -> bool:
        cache, form = self._flat[number], self._forms[number]
        if isinstance(cache, self._lib.ArraysCache):
            return not entry.counters and _alike(entry.arrays, form, free_axis=None)
        if any(array is None for array in entry.arrays) or not _alike(entry.arrays, form, free_axis=2):
            return False
        room: int = entry.arrays[0].shape[2]
        if entry.arrays[1].shape[2] != room:
            return False
        if isinstance(cache, self._lib.KVCache):
            return entry.counters == (length,) and room == length
        if len(entry.counters) != 2 or entry.counters[0] != length:
            return False
        # Before the window is full the two counters are the same; after that the second one goes round in it.
        index = entry.counters[1]
        return 0 < index <= room and (index == length or length >= cache.max_size <= room)

    def _copy(self, cache: Any) -> Entry:
        if isinstance(cache, self._lib.ArraysCache):
            return Entry(tuple(self._own(array) for array in cache.cache))
        keys, values = cache.keys, cache.values
        counters: tuple[int, ...] = (cache.offset,)
        if isinstance(cache, self._lib.RotatingKVCache):
            counters += (cache._idx,)
        elif keys is not None:
            keys, values = keys[..., : cache.offset, :], values[..., : cache.offset, :]
        return Entry((self._own(keys), self._own(values)), counters)

    def _form(self, cache: Any) -> tuple[_Form | None, ...]:
        arrays = cache.cache if isinstance(cache, self._lib.ArraysCache) else (cache.keys, cache.values)
        return tuple(None if array is None else _Form(tuple(array.shape), array.dtype) for array in arrays)

    def _own(self, array: Any) -> Any:
        # Without `contiguous` a slice of a few bytes would keep all of its parent.
        return None if array is None else self._lib.mx.contiguous(array)

    def _kinds(self) -> tuple[type, ...]:
        return (self._lib.KVCache, self._lib.RotatingKVCache, self._lib.ArraysCache)

    def _flatten(self, caches: Any) -> Iterator[Any]:
        for cache in caches:
            if type(cache) is self._lib.CacheList:
                yield from self._flatten(cache.caches)
            else:
                yield cache


def _alike(arrays: tuple[Any, ...], forms: tuple[_Form | None, ...], free_axis: int | None) -> bool:
    """Whether types and shapes are those, but for one axis."""
    if len(arrays) != len(forms):
        return False
    for array, form in zip(arrays, forms, strict=True):
        if array is None or form is None:
            if array is not form:
                return False
            continue
        shape, wanted = list(array.shape), list(form.shape)
        if len(shape) != len(wanted) or array.dtype != form.dtype:
            return False
        if free_axis is not None:
            shape[free_axis] = wanted[free_axis]
        if shape != wanted:
            return False
    return True
