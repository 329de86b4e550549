"""The best k of whole rows of scores: for catalogues whose rows fit in cache.

The items of a row are cut into groups, and the maximum of each group is one vectorised pass. The
k + 1 groups of largest maximum hold the k + 1 largest scores, so the sort sees only those groups.
"""

import torch
from torch import Tensor

MAX_GROUP = 16


def group_size(columns: int, k: int) -> int:
    """Columns of a group: a power of two near √(columns / k), where both passes cost the same."""
    group = 1
    while group < MAX_GROUP and (2 * group) ** 2 * (k + 1) <= columns:
        group *= 2
    return group


def best_of_rows(scores: Tensor, k: int, group: int) -> tuple[Tensor, Tensor] | None:
    """The k largest scores of each row and their columns, best first, equals in column order.

    Args:
        scores: `[b, N]`, a whole number of groups.
        k: Length of the lists; there are more groups than this.
        group: Columns of a group.

    Returns:
        Values and columns `[b, k]`; None where equal scores leave open which column is the k-th.
    """
    b, N = scores.shape
    if group == 1:
        top, columns = scores.topk(k + 1, dim=1)
    else:
        # Group g is the columns g, G + g, 2G + g, …: the maximum then runs along whole lines.
        maxima = scores.view(b, group, N // group).amax(dim=1)  # [b, G]
        groups = maxima.topk(k + 1, dim=1, sorted=False).indices.unsqueeze(1)
        members = torch.arange(0, N, N // group, device=scores.device)[:, None]
        chosen = (groups + members).flatten(1)  # [b, group · (k + 1)]
        top, places = scores.gather(1, chosen).topk(k + 1, dim=1)
        columns = chosen.gather(1, places)
    same = top[:, :k] == top[:, 1:]
    if bool(same[:, -1].any()):
        return None
    top, columns = top[:, :k], columns[:, :k]
    if bool(same.any()):
        columns, order = columns.sort(dim=1)
        top, order = top.gather(1, order).sort(dim=1, descending=True, stable=True)
        columns = columns.gather(1, order)
    return top, columns
