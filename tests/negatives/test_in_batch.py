import math

import pytest
import torch

from crossbatch.negatives import Candidates, Corpus, InBatchSampler


def test_log_q_is_the_unigram_distribution_and_padding_is_no_item():
    sampler = InBatchSampler(Corpus(torch.tensor([100, 1, 3]), dim=2))
    assert sampler.log_q(torch.tensor([1, 2])).tolist() == pytest.approx(
        [math.log(0.25), math.log(0.75)]
    )
    with pytest.raises(ValueError, match="item_ids hold 0, whose count is 0"):
        sampler.log_q(torch.tensor([0, 1]))


def test_the_corpus_is_not_changed():
    counts = torch.tensor([100, 1, 3])
    InBatchSampler(Corpus(counts, dim=2))
    assert counts.tolist() == [100, 1, 3]


def test_negatives_are_the_batch_itself_and_nothing_is_encoded():
    sampler = InBatchSampler(Corpus(torch.tensor([0, 1, 3]), dim=2))
    batch = Candidates(torch.randn(2, 2), torch.tensor([1, 2]), torch.zeros(2))
    assert sampler.draw(torch.randn(2, 2), batch, encode=None) is batch
