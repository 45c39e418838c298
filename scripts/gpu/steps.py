"""Steps of the kit, in order: tests, speed, the main task to its moments, Table 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Published batch size: Eureka-moments in Transformers, A.14.
BATCH = 512
# Name on the page -> softmax, and the row of Table 1 that it is set beside.
MOMENTS = {"NormSoftmax": ("norm_softmax", "norm_softmax"), "softmax": ("softmax", "vit")}
# Starts that have their moments within minutes (results/h100).
START = ("model.init=torch", "model.position_std=1.0")
# Stage -> its share of the time; what a stage does not use goes to the stages after it.
SHARES = {"tests": 0.15, "speed": 0.3, "moments": 0.35, "table_1": 0.2}
# Stages whose steps go on where they were cut off.
RESUMABLE = ("moments", "table_1")


@dataclass(frozen=True)
class Places:
    """Folders that the kit writes to.

    Attributes:
        results: folder of the pages.
        runs: folder of the runs.
    """

    results: Path = ROOT / "results" / "gpu"
    runs: Path = ROOT / "runs" / "gpu"


@dataclass(frozen=True)
class Step:
    """One command of a stage.

    Attributes:
        stage: one of SHARES.
        name: of the step, and of its log.
        words: after ``python``.
        afterwards: commands that write pages of what there is, however far the step came.
        pages: files that it writes, by name.
    """

    stage: str
    name: str
    words: tuple[str, ...]
    afterwards: tuple[tuple[str, ...], ...] = ()
    pages: tuple[str, ...] = field(default=())


def steps(places: Places, rehearse: bool = False) -> list[Step]:
    """Lists all steps.

    Args:
        places: where they write.
        rehearse: in small, on the processor: shows that each works, and measures nothing.
    """
    device = "cpu" if rehearse else "cuda"
    return [
        *_tests(rehearse),
        *_speed(places, device, rehearse),
        *_moments(places, rehearse),
        _table_1(places, rehearse),
    ]


def _tests(rehearse: bool) -> list[Step]:
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    only = ["-x", "--collect-only"] if rehearse else []
    # -v: the log of a step that is cut off tells which tests have passed.
    words = ("-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", *only)
    return [Step("tests", f"tests_{path.stem.removeprefix('test_')}", (*words, str(path))) for path in files]


def _speed(places: Places, device: str, rehearse: bool) -> list[Step]:
    sizes = ["--quick", "--seconds-per-measurement", "0"] if rehearse else ["--seconds-per-measurement", "1"]

    def bench(name: str, *words: str) -> Step:
        out = places.results / f"speed_{name}"
        given = ("-m", "lab.bench", "--device", device, "--only", *words, *sizes, "--out", str(out))
        return Step("speed", f"speed_{name}", given, pages=(f"{out.name}.md", f"{out.name}_incomplete.md"))

    batch = () if rehearse else ("--batch-size", str(BATCH))
    published = ("--precision", "bfloat16", *batch)
    main, others = ("softmax", "norm_softmax"), ("learnable_temperature", "adaptive_temperature")
    # A step for each measurement: one that is cut off begins anew, one that is done stays. The most wanted come first.
    found = [bench("ratio", "ratio", "--softmax", *main, *published), bench("seeds", "seeds")]
    found += [bench(f"train_{one}", "train", "--softmax", one, *published) for one in main]
    found += [bench(f"train_{one}", "train", "--softmax", one, *published) for one in others if not rehearse]
    found += [bench("windows", "windows", "--precision", "bfloat16") for _ in range(not rehearse)]
    return [*found, bench("attention", "attention", "--softmax", *main, "--precision", "bfloat16")]


# Overrides of a run that takes seconds, on drawn images.
_SMALL = (
    "data/source=drawn",
    *(f"data.source.{kind}.{split}_size=60" for kind in ("digits", "garments") for split in ("train", "test")),
    "data.batch_size=4",
    "data.epoch_size=8",
    "data.validation_size=8",
    # The published rate for these few samples, since min_lr must be below it.
    "optim.lr_reference_batch=4",
    "trainer.max_epochs=2",
)


def _how(rehearse: bool) -> list[str]:
    return [*_SMALL, "trainer=cpu"] if rehearse else ["trainer=gpu", "compile=true"]


def _moments(places: Places, rehearse: bool) -> list[Step]:
    return [
        Step(
            "moments",
            f"moment_{softmax}",
            (
                "-m",
                "lab.train",
                "experiment=main_task",
                f"softmax={softmax}",
                *START,
                *_how(rehearse),
                "callbacks.eureka.stop_after=0",
                f"paths.runs={places.runs / 'moments'}",
            ),
        )
        for softmax, _ in MOMENTS.values()
    ]


def _table_1(places: Places, rehearse: bool) -> Step:
    runs = places.runs / "table_1"
    seeds, how = (["--seeds", "1"], [*_how(True), "compile=false"]) if rehearse else ([], [])
    out = places.results / "table_1"
    options = (*seeds, "--runs", str(runs), "--out", str(places.results / "tables"))
    # Where overrides have equal keys, the last one counts.
    words = ("-m", "scripts.reproduce.table", "1", "trainer=gpu", "compile=true", *how, *options)
    report = ("-m", "lab.report", str(runs), "--against", "eureka/table_1", "--out", str(out))
    return Step("table_1", "table_1", words, (report,), ("table_1/report.md",))
