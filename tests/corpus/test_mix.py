import json
import random

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.corpus.manifest import Funnel, Manifest
from etude.corpus.mix import Mix
from etude.corpus.shards import ShardWriter

END = 1


@pytest.fixture
def make_corpus(tmp_path):
    """A finished corpus of documents whose ids say where they are from: source, document, place."""

    def make(sizes, weights, shards=3):
        documents, made = {}, []
        for source, (name, lengths) in enumerate(sizes.items()):
            parts = [lengths[n::shards] for n in range(shards)]
            number = 0
            for part, chosen in enumerate(parts):
                if not chosen:
                    continue
                writer = ShardWriter(tmp_path / "shards", f"train-{source:03}-{part:05}", "uint32")
                for length in chosen:
                    first = 1_000_000 * (source + 1) + 1_000 * number
                    ids = [*range(first, first + length - 1), END]
                    documents[first] = ids
                    writer.append(ids, 4 * length)
                    number += 1
                made.append(writer.finish("train", name))
        Manifest({}, weights, Funnel(), [], [], [], [], "f", 2**30, "uint32", False, made, {}).save(tmp_path)
        return tmp_path, documents

    return make


SIZES = {"big": [random.Random(n).randrange(2, 900) for n in range(80)], "small": [7, 64, 65, 128, 500, 2, 33]}
WEIGHTS = {"big": 1.0, "small": 3.0}


def ids_of(pieces):
    return [piece.tolist() for piece in pieces]


def test_take_gives_exactly_as_many_ids_as_asked_in_pieces_of_one_document(make_corpus):
    directory, documents = make_corpus(SIZES, WEIGHTS)
    mix = Mix(directory, "train", sequence=64, seed=0)
    rng = random.Random(0)
    for _ in range(300):
        asked = rng.choice([1, 2, 63, 64, 65, 1000, 2048])
        pieces = mix.take(asked)
        assert sum(map(len, pieces)) == asked and all(1 <= len(piece) <= 64 for piece in pieces)
        for piece in ids_of(pieces):
            body = piece[:-1] if piece[-1] == END else piece
            if body:
                assert body == list(range(body[0], body[0] + len(body)))  # in a row, so of one document
                whole = documents[body[0] // 1000 * 1000]
                assert piece[-1] != END or whole[-2] == body[-1]  # only a document's own end ends a piece


def test_each_epoch_visits_everything_once_in_another_order(make_corpus):
    directory, documents = make_corpus({"one": SIZES["big"]}, {"one": 1.0})
    mix = Mix(directory, "train", sequence=64, seed=5)
    total = mix.manifest.tokens("train")
    orders = []
    for _ in range(3):
        taken = [piece for _ in range(total // 50) for piece in ids_of(mix.take(50))] + ids_of(mix.take(total % 50))
        flat = sorted(i for piece in taken for i in piece)
        assert flat == sorted(i for ids in documents.values() for i in ids)
        orders.append([piece[0] for piece in taken])
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_long_documents_are_cut_evenly(make_corpus):
    directory, _ = make_corpus({"one": [65]}, {"one": 1.0}, shards=1)
    lengths = sorted(len(piece) for piece in Mix(directory, "train", 64, 0).take(65))
    assert lengths == [32, 33]


def test_resuming_at_random_positions_gives_exactly_the_same_pieces(make_corpus):
    directory, _ = make_corpus(SIZES, WEIGHTS)
    mix = Mix(directory, "train", 64, seed=3)
    rng = random.Random(1)
    asked = [rng.choice([1, 17, 64, 500, 2048]) for _ in range(200)]
    positions, batches = [], []
    for tokens in asked:
        positions.append(json.dumps(mix.position()))
        batches.append(ids_of(mix.take(tokens)))
    for start in rng.sample(range(200), 25):
        fresh = Mix(directory, "train", 64, seed=3)
        fresh.seek(json.loads(positions[start]))
        for n in range(start, min(start + 8, 200)):
            assert json.dumps(fresh.position()) == positions[n]
            assert ids_of(fresh.take(asked[n])) == batches[n]
    assert max(map(len, positions)) < 300


def test_how_much_is_taken_at_once_does_not_change_what_comes(make_corpus):
    directory, _ = make_corpus(SIZES, WEIGHTS)
    one, many = Mix(directory, "train", 64, 0), Mix(directory, "train", 64, 0)
    flat = np.concatenate(one.take(10_000))
    assert (flat == np.concatenate([piece for _ in range(1000) for piece in many.take(10)])).all()


def test_sources_come_in_proportion_to_their_weights(make_corpus):
    directory, _ = make_corpus(SIZES, WEIGHTS)
    mix = Mix(directory, "train", 64, 0)
    for asked in (2_000, 20_000, 50_000):
        flat = np.concatenate(mix.take(asked))
        own = flat[flat != END]
        assert abs((own < 2_000_000).mean() - 0.25) < 64 / asked + 0.02
    served = {name: of[2] for name, of in mix.position()["piles"].items()}
    assert abs(served["small"] - 3 * served["big"]) <= 4 * 64


def test_seeds_differ(make_corpus):
    directory, _ = make_corpus(SIZES, WEIGHTS)
    assert ids_of(Mix(directory, "train", 64, 0).take(2000)) != ids_of(Mix(directory, "train", 64, 1).take(2000))


def test_a_position_of_another_mix_is_refused(make_corpus):
    directory, _ = make_corpus(SIZES, WEIGHTS)
    position = Mix(directory, "train", 64, 0).position()
    for other in (Mix(directory, "train", 32, 0), Mix(directory, "train", 64, 1)):
        with pytest.raises(EtudeError, match="belongs to another mix"):
            other.seek(position)
    mix = Mix(directory, "train", 64, 0)
    with pytest.raises(EtudeError, match="corpus"):
        mix.seek(position | {"corpus": "another"})
    with pytest.raises(EtudeError, match="piles"):
        mix.seek(position | {"piles": {}})


def test_mistakes_are_one_sentence(make_corpus, tmp_path):
    with pytest.raises(EtudeError, match="does not exist"):
        Mix(tmp_path / "nowhere", "train", 64, 0)
    with pytest.raises(EtudeError, match="is not finished"):
        Mix(tmp_path, "train", 64, 0)
    directory, _ = make_corpus(SIZES, WEIGHTS)
    with pytest.raises(EtudeError, match=r"no text in its held_out split; raise corpus.held_out"):
        Mix(directory, "held_out", 64, 0)
    with pytest.raises(EtudeError, match="nothing to predict"):
        Mix(directory, "train", 1, 0)
    with pytest.raises(EtudeError, match="at least one"):
        Mix(directory, "train", 64, 0).take(0)
    (directory / "shards/train-000-00001.ids").write_bytes(b"")
    with pytest.raises(EtudeError, match="bytes instead of"):
        Mix(directory, "train", 64, 0)
    for broken in ("{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "funnel": 3}'):
        (directory / "manifest.json").write_text(broken)
        with pytest.raises(EtudeError, match=r"manifest.json"):
            Mix(directory, "train", 64, 0)
