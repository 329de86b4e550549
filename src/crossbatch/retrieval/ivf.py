"""Approximate top-k with faiss: only part of the items is searched, and what it finds is rescored.

    index = IVFIndex.build(item_vectors, probes=64)
    index.search(interests, k=50)

Items are stored in cells of similar ones; a search reads the `probes` cells nearest to a vector.
Each of a user's K interests is searched separately, and the union of the results is scored again
with the float32 vectors and the largest of the K inner products: scores are those of `ExactIndex`.
"""

import math
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from crossbatch.queries import Queries, combined, rows_of, weights_of
from crossbatch.retrieval.allowed import Allowed
from crossbatch.retrieval.index import FEW_ALLOWED, ExactIndex
from crossbatch.retrieval.topk import TopK, search_blocks

OVERSAMPLING = 3  # candidates for each place of a list: codes of 4 bits are not quite in order
LEAST_CANDIDATES = 64  # of short lists: scoring so many again costs little
MANY_ITEMS = 50_000  # from which on items have codes of 4 bits; of fewer, more exact ones
SMALL = 8  # lists longer than 1/SMALL of the catalogue are made exactly
BLOCK_NUMBERS = 1 << 24  # candidate vectors held at once, in numbers (64 MB)


class IVFIndex:
    """A faiss index of cells beside the item vectors themselves.

    Args:
        vectors: `[N + 1, d]` float32, row = item id; memory-mapped ones stay on disk.
        cells: The faiss index, trained and filled with rows 1 … N.
        probes: Cells that a search looks into.
    """

    exact: ClassVar[bool] = False

    def __init__(self, vectors: Tensor, cells: Any, probes: int) -> None:
        if probes < 1:
            raise ValueError(f"probes must be at least 1, got {probes}")
        if cells.d != vectors.shape[1] or cells.ntotal != len(vectors) - 1:
            raise ValueError(
                f"the index holds {cells.ntotal} vectors of {cells.d} numbers, "
                f"the catalogue {len(vectors) - 1} of {vectors.shape[1]}"
            )
        self._exact = ExactIndex(vectors)
        self._cells, self.probes = cells, probes

    @classmethod
    def build(cls, vectors: Tensor, *, probes: int = 64, fine: bool = False) -> Self:
        """Learn the cells of `[N + 1, d]` vectors and fill them, row 0 left out.

        With `fine`, items have codes of 8 bits however many they are.
        """
        vectors = ExactIndex(vectors.float()).vectors  # raises unless they are finite
        faiss, rows = load_faiss(), _rows(vectors)
        cells = 2 ** round(math.log2(max(1.0, 4 * math.sqrt(len(rows)))))
        # 4 bits a number, compared 32 items at once: an eighth of the vectors' memory. What they
        # find is scored again with the vectors themselves.
        codes = f"PQ{rows.shape[1]}x4fs" if len(rows) >= MANY_ITEMS and not fine else "SQ8"
        index = faiss.index_factory(
            rows.shape[1], f"IVF{cells},{codes}", faiss.METRIC_INNER_PRODUCT
        )
        # By directions: centres of any length draw most items into a few cells.
        index.cp.spherical = True
        index.cp.max_points_per_centroid = 64  # as good as faiss's 256 in a quarter of the time
        index.cp.min_points_per_centroid = 1  # no warning for small catalogues
        index.train(rows)
        index.add(rows)
        return cls(vectors, index, probes)

    @classmethod
    def load(cls, path: Path, vectors: Tensor, *, probes: int) -> Self:
        """Read what `save` wrote.  The file is parsed by faiss: load only trusted ones.

        Raises:
            ValueError: If it is no such index, or does not hold the rows 1 … N once each.
        """
        faiss = load_faiss()
        try:
            index = cls(vectors, faiss.read_index(str(path)), probes)
        except RuntimeError as error:
            raise ValueError(f"{path} is no index that faiss can read: {error}") from None
        if not torch.equal(index._stored_rows(faiss), torch.arange(index.num_items)):
            raise ValueError(f"{path} does not hold each item of the catalogue once")
        return index

    def _stored_rows(self, faiss: Any) -> Tensor:
        """Numbers of all rows in the cells, ascending; those of a file may be anything."""
        lists = getattr(self._cells, "invlists", None)
        if lists is None or lists.nlist != self.num_cells:
            raise ValueError("the index has no cells; build it again")
        found = [
            torch.from_numpy(faiss.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell)))
            for cell in range(lists.nlist)
            if lists.list_size(cell)
        ]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *found]).sort().values

    def save(self, path: Path) -> None:
        """Write the cells, without the vectors."""
        try:
            load_faiss().write_index(self._cells, str(path))
        except RuntimeError as error:  # faiss hides the system's error number
            raise OSError(f"{path} could not be written: {error}") from None

    def over(self, vectors: Tensor) -> Self:
        """The same cells over other items `[N' + 1, d]`: nothing is trained again."""
        vectors = ExactIndex(vectors.float()).vectors
        cells = load_faiss().clone_index(self._cells)
        cells.reset()
        cells.add(_rows(vectors))
        return type(self)(vectors, cells, self.probes)

    @property
    def vectors(self) -> Tensor:
        """`[N + 1, d]`, row = item id."""
        return self._exact.vectors

    @property
    def num_items(self) -> int:
        """Number of items that can be returned; ids run from 1 to this."""
        return self._exact.num_items

    @property
    def num_cells(self) -> int:
        """Number of cells; with as many probes every item is searched."""
        return int(self._cells.nlist)

    @torch.no_grad()
    def search(
        self,
        interests: Tensor | Queries,
        k: int,
        *,
        exclude: Tensor | None = None,
        allowed: Tensor | Allowed | None = None,
    ) -> TopK:
        """Return k items of large `max over interests of interest · item` for each user.

        What any interest finds is scored exactly. Lists are as long as the exact ones: a user for
        whom too little is found is answered exactly.

        Args:
            interests: `[B, K, d]` vectors of B users, or their `Queries`.
            k: Length of the lists.
            exclude: `[B, X]` item ids never to return for that user; 0 means none.
            allowed: `[N + 1]` bool, the items that may be returned to any user, or an `Allowed`;
                None: all.
        """
        self._exact.check(interests, k, exclude, allowed)
        interests = interests.detach().to(self.vectors)
        B, K, d = weights_of(interests)[0].shape
        width = max(OVERSAMPLING * k, LEAST_CANDIDATES) + (
            0 if exclude is None else exclude.shape[1]
        )
        num_allowed = self.num_items
        if allowed is not None:
            allowed = Allowed.of(allowed)
            num_allowed = allowed.count
        few = num_allowed * FEW_ALLOWED < self.num_items
        if not B or few or width * SMALL > num_allowed:
            return self._exact.search(interests, k, exclude=exclude, allowed=allowed)
        # So many more that enough of them may be returned; for users of whom that is not true,
        # faiss skips what may not.
        width = math.ceil(width * self.num_items / num_allowed)
        rows = max(1, BLOCK_NUMBERS // (K * width * d))
        search = partial(self._search_block, k, width, allowed)
        return search_blocks(search, interests, exclude, rows)

    def _search_block(
        self,
        k: int,
        width: int,
        allowed: Allowed | None,
        interests: Tensor | Queries,
        exclude: Tensor | None,
        *,
        skip: bool = False,
    ) -> TopK:
        """Search for one block of users; with `skip` faiss leaves out what is not allowed."""
        vectors, log_weights = weights_of(interests)
        # [b, C] ascending, 0 where there is none
        candidates = self._candidates(vectors, width, allowed if skip else None)
        scores = torch.bmm(self.vectors[candidates], vectors.transpose(1, 2))  # [b, C, K]
        scores = combined(scores.transpose(1, 2), log_weights)
        blank = candidates == 0
        blank[:, 1:] |= candidates[:, 1:] == candidates[:, :-1]  # found by several interests
        if allowed is not None and not skip:
            blank |= ~allowed.mask[candidates]
        if exclude is not None and exclude.shape[1]:
            blank |= _among(candidates, exclude)
        scores.masked_fill_(blank, -torch.inf)
        # stable, over ascending ids: of equal scores the smaller id comes first
        best, order = scores.sort(dim=1, descending=True, stable=True)
        top = TopK(best[:, :k].contiguous(), candidates.gather(1, order[:, :k]))
        short = (top.scores[:, -1] == -torch.inf).nonzero().flatten()
        if len(short):
            banned = None if exclude is None else exclude[short]
            rest = rows_of(interests, short)
            if allowed is not None and not skip:
                again = self._search_block(k, width, allowed, rest, banned, skip=True)
            else:
                again = self._exact.search(rest, k, exclude=banned, allowed=allowed)
            top.scores[short], top.item_ids[short] = again.scores, again.item_ids
        return top

    def _candidates(self, interests: Tensor, width: int, allowed: Allowed | None) -> Tensor:
        """Ids `[b, K·width]` that faiss finds for any interest, ascending; 0 for none."""
        faiss = load_faiss()
        faiss.omp_set_num_threads(torch.get_num_threads())
        b, K, d = interests.shape
        _, rows = self._cells.search(
            interests.reshape(b * K, d).contiguous().cpu().numpy(),
            width,
            params=faiss.SearchParametersIVF(**self._parameters(allowed)),
        )
        return (torch.from_numpy(rows) + 1).view(b, K * width).sort(dim=1).values

    def _parameters(self, allowed: Allowed | None) -> dict[str, Any]:
        if allowed is None:
            return {"nprobe": self.probes}
        # The best of fewer items lie in more cells: as many allowed ones must be read as without.
        probes = math.ceil(self.probes * self.num_items / allowed.count)
        selector = load_faiss().IDSelectorBitmap(allowed.bits)
        return {"nprobe": min(probes, self.num_cells), "sel": selector}


def load_faiss() -> Any:
    """The faiss module, imported when first needed."""
    try:
        return import_module("faiss")
    except ImportError:
        raise ImportError("approximate indexes need: pip install 'crossbatch[ann]'") from None


def _among(candidates: Tensor, exclude: Tensor) -> Tensor:
    """Whether each of the candidates `[b, C]` is among its row's ids `[b, X]`."""
    banned = exclude.to(candidates).sort(dim=1).values
    places = torch.searchsorted(banned, candidates).clamp_max(banned.shape[1] - 1)
    return banned.gather(1, places) == candidates


def _rows(vectors: Tensor) -> Any:
    return vectors[1:].contiguous().cpu().numpy()
