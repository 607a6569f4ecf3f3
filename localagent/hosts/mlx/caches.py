"""MLX prompt caches: copied and restored, joined in batches and taken out of them.

Of mlx-lm's cache classes, KVCache can be cut at its end; ArraysCache (recurrent state) and RotatingKVCache
(sliding window) cannot, and are copied. A copy is restored bit for bit, and never changes: the cache gets new
arrays that share the copy's memory until they are written. If a model has caches of another class,
`Caches.known` is False: nothing is copied, cut or joined, and every sequence is evaluated from the start.

In a batch the sequences end at the same place, and shorter ones begin with padding, which mlx-lm's own batch
classes hide from attention. Recurrent state needs no padding: a step appends one token to every row.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from localagent.hosts.mlx.library import Library, first_line


@dataclass(eq=False, slots=True, weakref_slot=True)
class CacheSnapshot:
    """What caches held after `length` tokens: of every one its arrays and its counters, or None for one that
    can be cut. `entries` is None once the engine was closed.
    """

    length: int
    entries: tuple[CacheEntry | None, ...] | None

    def arrays(self) -> Iterator[Any]:
        """Every array in it."""
        for entry in self.entries or ():
            yield from (array for array in (entry.arrays if entry else ()) if array is not None)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The content of one cache."""

    arrays: tuple[Any, ...]
    counters: tuple[int, ...] = ()


class _Form(NamedTuple):
    """What is known of an array before it is computed."""

    shape: tuple[int, ...]
    dtype: Any


class Caches:
    """What is known of the caches of one model. A sequence has a list of them, as `make` returns it.

    `known`: whether they can be copied and cut. `obstacle`: why those of several sequences cannot be joined;
    empty if they can.
    """

    def __init__(self, lib: Library, model: Any) -> None:
        self._lib = lib
        self._model = model
        caches = self.make()
        flat = list(self._flatten(caches))
        self._classes = tuple(type(cache) for cache in flat)
        self.kinds = tuple(kind.__name__ for kind in self._classes)
        self.known = set(self._classes) <= {lib.KVCache, lib.RotatingKVCache, lib.ArraysCache}
        # MLX is lazy: this computes nothing, and tells every shape.
        self.vocabulary_size: int = model(lib.mx.array([[0]]), cache=caches).shape[-1]
        self._forms = tuple(self._form(cache) for cache in flat) if self.known else ()
        self._windows = tuple(getattr(cache, "max_size", 0) for cache in flat)
        self.obstacle = self._obstacle(flat)

    def make(self) -> list[Any]:
        """Empty caches for one sequence."""
        return self._lib.make_prompt_cache(self._model)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of the model."""
        self._model = None

    # -- one sequence ----------------------------------------------------------------------------------

    def copy(
        self, caches: list[Any], length: int, whole: bool, rest: CacheSnapshot | None = None
    ) -> CacheSnapshot:
        """What is needed to come back to `length` tokens: everything, or what cannot be cut.

        `rest`: what cannot be cut, copied when there were so many; None if there are so many now.
        """
        entries: list[CacheEntry | None] = []
        for number, cache in enumerate(self._flatten(caches) if self.known else ()):
            cuttable = isinstance(cache, self._lib.KVCache)
            if rest is not None and rest.entries is not None and not cuttable:
                entries.append(rest.entries[number])
            else:
                entries.append(self._copy(cache, length) if whole or not cuttable else None)
        snapshot = CacheSnapshot(length, tuple(entries))
        self._lib.mx.eval(list(snapshot.arrays()))
        return snapshot

    def can_put(self, snapshot: CacheSnapshot, whole: bool) -> bool:
        """Whether `put` can go back to it: from anywhere, or only from a sequence that goes on from there."""
        entries = snapshot.entries
        if not self.known or entries is None or len(entries) != len(self._classes):
            return False
        return all(
            entry is not None or (not whole and kind is self._lib.KVCache)
            for entry, kind in zip(entries, self._classes, strict=True)
        )

    def put(self, caches: list[Any], snapshot: CacheSnapshot) -> None:
        """Cut what can be cut and put back the rest."""
        lib = self._lib
        for cache, entry in zip(self._flatten(caches), snapshot.entries or (), strict=True):
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
        lib.mx.eval([cache.state for cache in caches])

    # -- several sequences -----------------------------------------------------------------------------

    def merge(self, several: Sequence[list[Any]]) -> list[Any]:
        """The caches of several sequences as those of one batch. They are copied; none may be empty."""
        return [type(alike[0]).merge(list(alike)) for alike in zip(*several, strict=True)]

    def extend(self, batch: list[Any], several: Sequence[list[Any]]) -> None:
        """Append the caches of more sequences to a batch."""
        for cache, more in zip(batch, self.merge(several), strict=True):
            cache.extend(more)

    def filter(self, batch: list[Any], rows: Sequence[int]) -> None:
        """Keep these rows of a batch, in this order."""
        for cache in batch:
            cache.filter(self._lib.mx.array(rows))

    def extract(self, batch: list[Any], row: int) -> list[Any]:
        """A copy of one row of a batch, as the caches of one sequence."""
        caches = [cache.extract(row) for cache in batch]
        for cache in self._flatten(caches):
            if isinstance(cache, self._lib.ArraysCache):  # the others copy by themselves
                cache.cache = [self._own(array) for array in cache.cache]
        # Queued at once: what is not computed keeps the whole batch in memory.
        self._lib.mx.async_eval([cache.state for cache in caches])
        return caches

    def note(self, caches: list[Any]) -> list[Any]:
        """What `undo` needs to go back to here.

        Caches cannot be written in place while it is held: let go of it before anything is computed.
        """
        return self._lib.tree_map(copy.copy, [cache.state for cache in caches])  # type: ignore[no-any-return]

    def undo(self, caches: list[Any], noted: list[Any]) -> None:
        """Go back to what was noted."""
        for cache, state in zip(caches, noted, strict=True):
            cache.state = state

    def _obstacle(self, flat: list[Any]) -> str:
        lib = self._lib
        if not self.known:
            odd = {kind.__name__ for kind in self._classes} - {"KVCache", "RotatingKVCache", "ArraysCache"}
            return f"caches of the kind {', '.join(sorted(odd))} cannot be joined"
        if any(getattr(cache, "keep", 0) for cache in flat):
            return "sliding windows that keep the first tokens cannot be joined"
        try:  # some models compute with the positions of a batch as if they were one number; lazy, too
            batch = []
            for _ in range(2):
                batch.append(self.make())
                self._model(lib.mx.array([[0]]), cache=batch[-1])
            shape = self._model(lib.mx.array([[0], [0]]), cache=self.merge(batch)).shape
        except Exception as error:
            return f"mlx-lm cannot join its caches: {first_line(error)}"
        return "" if shape[0] == 2 else "mlx-lm cannot join its caches"

    def fits(self, snapshot: CacheSnapshot) -> bool:
        """Whether a snapshot from a file has the shapes of this model's caches."""
        entries = snapshot.entries or ()
        return len(entries) == len(self._forms) and all(
            self._fits(entry, number, snapshot.length)
            if entry is not None
            else self._classes[number] is self._lib.KVCache
            for number, entry in enumerate(entries)
        )

    def _fits(self, entry: CacheEntry, number: int, length: int) -> bool:
        kind, form, window = self._classes[number], self._forms[number], self._windows[number]
        if kind is self._lib.ArraysCache:
            return not entry.counters and _alike(entry.arrays, form, free_axis=None)
        if any(array is None for array in entry.arrays) or not _alike(entry.arrays, form, free_axis=2):
            return False
        room: int = entry.arrays[0].shape[2]
        if entry.arrays[1].shape[2] != room:
            return False
        if kind is self._lib.KVCache:
            return entry.counters == (length,) and room == length
        if len(entry.counters) != 2 or entry.counters[0] != length:
            return False
        # Before the window is full the two counters are the same; after that the second one goes round in it.
        index = entry.counters[1]
        return 0 < index <= room and (index == length or length >= window <= room)

    def _copy(self, cache: Any, length: int) -> CacheEntry:
        if isinstance(cache, self._lib.ArraysCache):
            return CacheEntry(tuple(self._own(array) for array in cache.cache))
        keys, values = cache.keys, cache.values
        if isinstance(cache, self._lib.RotatingKVCache):
            return CacheEntry((self._own(keys), self._own(values)), (cache.offset, cache._idx))
        if keys is not None:
            keys, values = keys[..., :length, :], values[..., :length, :]
        return CacheEntry((self._own(keys), self._own(values)), (length,))

    def _form(self, cache: Any) -> tuple[_Form | None, ...]:
        arrays = cache.cache if isinstance(cache, self._lib.ArraysCache) else (cache.keys, cache.values)
        return tuple(None if array is None else _Form(tuple(array.shape), array.dtype) for array in arrays)

    def _own(self, array: Any) -> Any:
        # Without `contiguous` a slice of a few bytes would keep all of its parent.
        return None if array is None else self._lib.mx.contiguous(array)

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
