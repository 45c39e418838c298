"""CLRS-Text: the lab writes problems as dm-clrs does, reads them as data, and asks for their answers alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.datasets.loading import IGNORED
from lab.datasets.text.algorithms import ALGORITHMS
from lab.datasets.text.clrs_text import ClrsTextData
from lab.datasets.text.drawn_problems import DrawnProblems
from lab.datasets.text.problem_files import FolderProblems
from lab.datasets.text.problems import shared_out
from lab.datasets.text.tokenizers import ByteTokenizer
from lab.datasets.text.tokens import END, SPECIAL, START

# Of dm-clrs: see the README there.
PUBLISHED = Path(__file__).parent / "clrs_text" / "train.jsonl"
LINES = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]


def inputs(question: str) -> tuple:
    """What the problem of a question was made of, in the order that ``write`` takes it."""
    if key := re.search(r"key: \[(.*?)\]", question):
        numbers = [float(number) for number in key[1].split()]
        target = re.search(r"target: (\S+)", question)
        return (numbers, float(target[1])) if target else (numbers,)
    rows = [[int(edge) for edge in row.split()] for row in re.findall(r"\[([01 ]+)\]", question)]
    return int(re.search(r"s: (\d+)", question)[1]), rows


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['algo_name']}-{line['length']}")
def test_text_and_answer_are_those_of_dm_clrs(line: dict) -> None:
    text = ALGORITHMS[line["algo_name"]].write(*inputs(line["question"]))
    assert line["question"] == f"{line['algo_name']}:\n{text.inputs}\n{text.asked}:\n"
    assert line["answer"] == f"{text.answer}\n\n" and line["text"] == line["question"] + line["answer"]


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("minimum", ([0.3, 0.1, 0.1],), "1"),
        ("quickselect", ([0.5, 0.2, 0.5, 0.9],), "2"),
        ("find_maximum_subarray_kadane", ([-0.3, 0.2, -0.1, 0.4, -0.9],), "1, 3"),
        ("binary_search", ([0.1, 0.4, 0.4], 0.4), "1"),
        ("binary_search", ([0.1, 0.4, 0.5], 0.9), "2"),
        ("bfs", (0, [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]), "[0 0 0 1]"),
    ],
)
def test_answers_of_ties_and_edges(name: str, given: tuple, answer: str) -> None:
    assert ALGORITHMS[name].write(*given).answer == answer


def test_drawn_problems_have_their_size_and_are_the_same_again() -> None:
    problems = DrawnProblems(smallest=5, largest=7, validation_sizes=(9,))
    drawn = problems.training(3, range(60))
    assert drawn == problems.training(3, range(60)) != problems.training(4, range(60))
    assert {one.size for one in drawn} == {5, 6, 7} and {one.algorithm for one in drawn} == set(ALGORITHMS)
    for one in drawn:
        found = inputs(one.question)
        assert len(found[1] if one.algorithm == "bfs" else found[0]) == one.size
        assert one.answer == f"{ALGORITHMS[one.algorithm].write(*found).answer}\n\n"
    groups = problems.validation(0, 20)
    assert sorted(map(len, groups)) == [3, 3, 3, 3, 4, 4] and all(
        len({one.algorithm for one in g}) == 1 for g in groups
    )
    with pytest.raises(ValueError, match=r"there is no heapsort; valid: bfs, binary_search"):
        DrawnProblems(["heapsort"])
    with pytest.raises(ValueError, match=r"data\.problems\.smallest=9 exceeds data\.problems\.largest=8"):
        DrawnProblems(smallest=9, largest=8)


def test_what_is_there_is_shared_out_evenly() -> None:
    assert (
        shared_out(10, [9, 1, 9]) == [4, 1, 5] and shared_out(99, [2, 3]) == [2, 3] and shared_out(2, [5, 5]) == [1, 1]
    )


def drawn(**options: int) -> ClrsTextData:
    problems = DrawnProblems(["minimum", "bfs"], smallest=4, largest=6, validation_sizes=(5, 8))
    return ClrsTextData(
        problems, ByteTokenizer(), **{"batch_size": 4, "epoch_size": 40, "validation_size": 20, **options}
    )


def test_the_answer_is_asked_for_and_its_end() -> None:
    data = drawn()
    data.setup()
    batch = data.draw_train(1, 3)
    again = drawn().draw_train(1, 3)
    (tokens, places), asked = batch["x"], batch["y"]
    assert torch.equal(tokens, again["x"][0]) and torch.equal(asked, again["y"]) and places.shape == asked.shape
    problems = {one.question + one.answer: one for one in data.problems.training(0, range(64))}
    for row, where, answer in zip(tokens.tolist(), places.tolist(), asked.tolist(), strict=True):
        answer = [token for token in answer if token != IGNORED]
        assert row[0] == START and answer[-1] == END
        # The whole text stands in the row; the end of it is only asked for.
        length = where[len(answer) - 1] + 1
        text = bytes(token - len(SPECIAL) for token in row[1:length]).decode()
        assert text.endswith(problems[text].answer) and row[where[0] + 1 : length] == answer[:-1]
    assert data.locations == ("in_distribution", "out_of_distribution") and data.model_arguments()["num_classes"] == 261
    validated = [data.draw_validation(index) for index in data.validation_batches(4)]
    groups = {tuple(tuple(values.unique().tolist()) for values in batch["latents"].values()) for batch in validated}
    assert groups == {((a,), (s,), (int(s == 8),)) for a in (0, 1) for s in (5, 8)}
    assert sum(len(batch["y"]) for batch in validated) == data.validation_size == 20


def test_tokens_that_no_answer_has_do_not_move_the_plateau() -> None:
    """Of the bytes alone, and with as many tokens more as Gemma has."""

    class Larger(ByteTokenizer):
        size = 256_000

    few, many = drawn(), drawn()
    many.tokenizer = Larger()
    assert few.prior_loss() == pytest.approx(many.prior_loss())


def test_what_is_too_long_is_left_out_and_told() -> None:
    data = drawn(longest=130)
    assert data.remarks() == ["not validated, since longer than data.longest=130 tokens: bfs 8"]
    assert data.locations == ("in_distribution", "out_of_distribution")
    sizes = torch.cat([data.draw_train(0, step)["latents"]["size"] for step in range(16)])
    assert len(sizes) == 64 and all(data.draw_train(0, step)["x"][0].shape[1] <= 130 for step in range(16))
    with pytest.raises(ValueError, match=r"longer than data\.longest=8 tokens"):
        drawn(longest=8).setup()


def test_what_validates_does_not_train() -> None:
    """Of four nodes there are few graphs."""
    problems = DrawnProblems(["bfs"], smallest=4, largest=4, validation_sizes=(4,))
    data = ClrsTextData(problems, ByteTokenizer(), batch_size=16, epoch_size=1600, validation_size=64)
    validated = {text for index in data.validation_batches(16) for text in texts(data.draw_validation(index))}
    stream = {(one.question, one.answer) for one in problems.training(0, range(1600))}
    assert stream & validated
    trained = {text for step in range(100) for text in texts(data.draw_train(0, step))}
    assert len(trained) > 200 and not trained & validated


def texts(batch: Any) -> set[tuple[str, str]]:
    """Questions and answers of a batch."""
    found = set()
    for row, where, answer in zip(*(one.tolist() for one in (*batch["x"], batch["y"])), strict=True):
        tokens = [*row[: where[0] + 1], *(token for token in answer if token not in (IGNORED, END))]
        text = bytes(token - len(SPECIAL) for token in tokens[1:]).decode()
        found.add((text[: where[0]], text[where[0] :]))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(PUBLISHED, tmp_path / "train-some.jsonl")
    later = [{**line, "length": line["length"] + (line["algo_name"] == "bfs")} for line in LINES]
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, later)))
    return tmp_path


def test_published_lines_come_once_a_time_through(folder: Path) -> None:
    problems = FolderProblems(str(folder))
    first, second = problems.training(0, range(24)), problems.training(0, range(24, 48))
    texts = sorted(line["text"] for line in LINES)
    assert [sorted(one.question + one.answer for one in turn) for turn in (first, second)] == [texts, texts]
    assert first != second and problems.trained["minimum"] == {4, 7}
    assert [(group[0].size, group[0].algorithm) for group in problems.validation(0, 12)][:3] == [
        (4, "binary_search"),
        (4, "find_maximum_subarray_kadane"),
        (4, "insertion_sort"),
    ]
    data = ClrsTextData(FolderProblems(str(folder), algorithms=["bfs"]), ByteTokenizer(), batch_size=2, epoch_size=4)
    assert data.locations == ("out_of_distribution",) and data.latent_names["algorithm"] == ("bfs",)
    assert int(data.draw_validation(0)["latents"]["target_location"][0]) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", r"train-bad\.jsonl, line 2 is not JSON"),
        (b"[1]", r"line 2 is not a JSON object with question"),
        (b"\xff", r"line 2 is not JSON"),
        (b'{"question": "a"}', r"line 2: answer must be text, and is missing"),
        (b'{"question": 3, "answer": "1"}', r"line 2: question must be text, and is 3"),
        (
            b'{"question": "a", "answer": "1", "algo_name": "bfs", "length": true}',
            r"length must be 1 to 100,000, and is",
        ),
        (
            b'{"question": "a", "answer": "1", "algo_name": "bfs", "length": 0}',
            r"length must be 1 to 100,000, and is 0",
        ),
        (b"[" * 5_000_000, r"line 2 is longer than 4,194,304 bytes"),
    ],
)
def test_a_line_that_is_no_problem_is_named(line: bytes, said: str, folder: Path) -> None:
    (folder / "train-bad.jsonl").write_bytes(PUBLISHED.read_bytes().splitlines()[0] + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=said):
        FolderProblems(str(folder)).training(0, [0])


def test_files_and_algorithms_that_are_not_there_are_told(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no problems in .*data\.problems\.train=none\*\.jsonl fits no file"):
        FolderProblems(str(folder), train="none*.jsonl").training(0, [0])
    with pytest.raises(ValueError, match=r"have no heapsort; beside those named, they have bfs"):
        FolderProblems(str(folder), algorithms=["minimum", "heapsort"]).training(0, [0])
    with pytest.raises(ValueError, match=r"data\.problems\.train=/etc/\* must be file names"):
        FolderProblems(str(folder), train="/etc/*")
