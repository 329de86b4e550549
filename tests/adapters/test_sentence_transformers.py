"""The loss against the library's own, and a training with the library's own trainer."""

import random

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from crossbatch.adapters.sentence_transformers import (
    CrossBatchLoss,
    SaveBank,
    text_ids,
)

WORDS = [f"w{number}" for number in range(80)]
PAIRS = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with a WordPiece vocabulary, made here: no download."""
    path = tmp_path_factory.mktemp("bert")
    (path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    )
    tokenizer = BertTokenizerFast(vocab=str(path / "vocab.txt"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def model(folder):
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")


@pytest.fixture(scope="module")
def pairs():
    """Questions and answers that share three rare words among common ones."""
    generator = random.Random(0)
    rows = []
    for _ in range(PAIRS):
        topic = generator.sample(WORDS[20:], 3)
        sides = [topic + generator.sample(WORDS[:20], 4) for _ in range(2)]
        rows.append([" ".join(generator.sample(side, len(side))) for side in sides])
    return Dataset.from_dict({"anchor": [a for a, _ in rows], "positive": [p for _, p in rows]})


def columns(model, *texts):
    return [model.preprocess(list(column)) for column in texts]


def test_without_a_bank_it_is_the_librarys_own_loss(model, pairs):
    batch = columns(model, pairs["anchor"][:8], pairs["positive"][:8], pairs["positive"][8:16])
    own, theirs = CrossBatchLoss(model, capacity=0), MultipleNegativesRankingLoss(model)
    for given in (batch[:2], batch):
        expected = theirs(given, torch.zeros(8))
        assert own(given).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_bank_adds_the_columns_of_earlier_batches(model, pairs):
    loss = CrossBatchLoss(model, capacity=64, warmup_steps=0)
    first = columns(model, pairs["anchor"][:8], pairs["positive"][:8])
    second = columns(model, pairs["anchor"][8:16], pairs["positive"][8:16])
    loss(first)
    found = loss(second)
    with torch.no_grad():
        a, p, earlier = (
            model(model.preprocess(list(texts)))["sentence_embedding"]
            for texts in (pairs["anchor"][8:16], pairs["positive"][8:16], pairs["positive"][:8])
        )
        scores = 20 * cosine_similarity(a[:, None], torch.cat([p, earlier])[None], dim=2)
        expected = cross_entropy(scores, torch.arange(8))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.stats()["bank_fill"] > 0


def test_a_copy_of_the_own_positive_is_no_negative(model):
    """The same text in two rows, and again in the bank, where it was padded to another length."""
    alone = CrossBatchLoss(model, capacity=0)
    masked = alone(columns(model, ["w1", "w1"], ["w3 w4", "w3 w4"]))
    assert masked.item() == pytest.approx(0.0, abs=1e-6)
    loss = CrossBatchLoss(model, capacity=64, warmup_steps=0)
    loss(columns(model, ["w1", "w2"], ["w3 w4", "w5 w6 w7 w8 w9"]))
    found = loss(columns(model, ["w1 w2"], ["w3 w4"]))
    with torch.no_grad():
        texts = ["w1 w2", "w3 w4", "w5 w6 w7 w8 w9"]
        a, p, other = model(model.preprocess(texts))["sentence_embedding"]
        scores = 20 * cosine_similarity(a[None], torch.stack([p, other]))
    assert found.item() == pytest.approx(cross_entropy(scores, torch.tensor(0)).item(), rel=1e-5)


def test_texts_are_told_apart_whatever_their_padding(model):
    texts = ["w1 w2", "w2 w1", "w1", "w1 w2 w3", "w1 w2"]
    (long,) = columns(model, [*texts, " ".join(WORDS[:20])])
    (short,) = columns(model, texts)
    ids = text_ids(short)
    assert ids.tolist() == text_ids(long)[:5].tolist()
    assert ids[0] == ids[4]
    assert len(set(ids.tolist())) == 4
    names = ("input_ids", "attention_mask")
    shifted = {name: torch.nn.functional.pad(short[name], (3, 0)) for name in names}
    assert text_ids(shifted).tolist() == ids.tolist()  # some tokenizers pad on the left


def test_labels_are_identities_and_have_counts(model):
    batch = columns(model, ["w1", "w2"], ["w3", "w4"])
    same = CrossBatchLoss(model, capacity=0)
    assert same(batch, torch.tensor([5, 5])).item() == pytest.approx(0.0, abs=1e-6)
    counted = CrossBatchLoss(model, capacity=0, item_counts=torch.tensor([1, 9]))
    plain = same(batch, torch.tensor([0, 1]))
    assert counted(batch, torch.tensor([0, 1])).item() != pytest.approx(plain.item(), rel=1e-3)
    with pytest.raises(ValueError, match="integer column label"):
        counted(batch)
    with pytest.raises(ValueError, match="anchor and positive"):
        same(batch[:1])


def training(model, pairs, out, loss, **options):
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        save_strategy="steps",
        save_steps=12,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        **options,
    )
    return SentenceTransformerTrainer(
        model, arguments, train_dataset=pairs, loss=loss, callbacks=[SaveBank(loss)]
    )


def accuracy(model, pairs):
    """Share of anchors whose own positive is nearest among all."""
    anchors, positives = (
        model.encode(pairs[name][:], convert_to_tensor=True, show_progress_bar=False)
        for name in ("anchor", "positive")
    )
    nearest = cosine_similarity(anchors[:, None], positives[None], dim=2).argmax(dim=1)
    return float((nearest == torch.arange(len(nearest))).float().mean())


@pytest.mark.filterwarnings("ignore")  # of three libraries about each other
def test_training_learns_and_resumes_exactly(model, folder, pairs, tmp_path):
    before = accuracy(model, pairs)
    loss = CrossBatchLoss(model, capacity=48, warmup_steps=3)
    training(model, pairs, tmp_path / "whole", loss, max_steps=24).train()
    assert accuracy(model, pairs) > before + 0.3
    assert len(loss.softmax.bank) == 48

    again = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32)], device="cpu")
    empty = CrossBatchLoss(again, capacity=48, warmup_steps=3)
    resumed = training(again, pairs, tmp_path / "whole", empty, max_steps=24)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-12"))
    for name, value in loss.state_dict().items():
        torch.testing.assert_close(empty.state_dict()[name], value, rtol=0, atol=0, msg=name)
