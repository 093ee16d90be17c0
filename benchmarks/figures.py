"""Draws every plot of the documentation, from result files and recipes.

make figures
"""

import json
import pathlib
import statistics

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_fastnet.recipes import RECIPES

HERE = pathlib.Path(__file__).parent
DOCS = HERE.parent / "docs"
_METHODS = {
    "sgd": ("SGD, no warm-up", "#999999", "s"),
    "sgd-warmup": ("SGD, warm-up", "#d9822b", "^"),
    "lars": ("LARS, warm-up", "#1f6fb4", "o"),
}

# Of benchmarks/weak_scaling.
_SYSTEMS = {
    "MultiWorkerMirroredStrategy, `reduce` overridden": (
        "MultiWorkerMirroredStrategy,\npatched so that it runs",
        "#777777",
    ),
    "PyTorch DDP, gloo": ("PyTorch DDP, gloo", "#777777"),
    "TorusStrategy": ("TorusStrategy, gRPC", "#1f6fb4"),
    "TorusStrategy, MPI": ("TorusStrategy, MPI", "#1f6fb4"),
    "Keras, no communication": ("two processes that\ndo not communicate", "#777777"),
}


def axes_of(figure: Figure, *place: int) -> Axes:
    axes = figure.add_subplot(*place)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def save(figure: Figure, name: str) -> None:
    # Without a date, so that the same results give the same file.
    figure.savefig(DOCS / name, metadata={"Date": None})
    print(DOCS / name)


def accuracy_by_batch() -> None:
    result = HERE / "large_batch_accuracy" / "result.json"
    if not result.exists():
        print(f"not drawn: {result} is not there yet")
        return
    # One number of epochs; the text states the others.
    cells = [cell for cell in json.loads(result.read_text()) if cell["epochs"] == 40]
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = axes_of(figure)
    for method, (label, colour, marker) in _METHODS.items():
        points = sorted(
            (cell["global_batch"], cell["accuracies"])
            for cell in cells
            if cell["method"] == method
        )
        batches = [batch for batch, _ in points]
        means = [100 * statistics.mean(found) for _, found in points]
        axes.plot(batches, means, color=colour, marker=marker, label=label)
        for batch, found in points:
            axes.plot([batch] * len(found), [100 * a for a in found], color=colour)
    axes.set_xscale("log", base=2)
    batches = sorted({cell["global_batch"] for cell in cells})
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.set_xlabel("global batch")
    axes.set_ylabel("top-1 on the test images, %")
    axes.legend(frameon=False)
    save(figure, "large_batch_accuracy.svg")


def recipes() -> None:
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    rates, batches = axes_of(figure, 2, 1, 1), axes_of(figure, 2, 1, 2)
    for name, function in RECIPES.items():
        recipe = function(ranks=2176 if name == "sony2018" else 256)
        # Over the line of facebook2017, whose rates and batches it may share.
        line = (0, (8, 8)) if name == "ibm2017" else "-"
        epochs = [recipe.epochs * part / 1000 for part in range(1001)]
        rates.plot(
            epochs, [recipe.rate_at(epoch) for epoch in epochs], ls=line, label=name
        )
        starts = [*recipe.phases, recipe.epochs]
        sizes = [*recipe.phases.values()]
        batches.step(starts, [*sizes, sizes[-1]], ls=line, where="post", label=name)
    rates.set_ylabel("learning rate")
    rates.legend(frameon=False)
    batches.set_ylabel("global batch")
    batches.set_ylim(bottom=0)
    batches.set_xlabel("epoch")
    save(figure, "recipes.svg")


def two_workers() -> None:
    result = json.loads((HERE / "weak_scaling" / "result.json").read_text())["results"]
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    axes = axes_of(figure)
    for name, (label, colour) in _SYSTEMS.items():
        speed = result[name]["images_per_second"]
        below_above = [
            [speed["median"] - speed["min"]],
            [speed["max"] - speed["median"]],
        ]
        axes.barh(label, speed["median"], color=colour, height=0.7)
        axes.errorbar(
            speed["median"], label, xerr=below_above, color="#333333", capsize=2
        )
        axes.text(1, label, f"{speed['median']:.0f}", va="center", color="white")
    axes.invert_yaxis()
    axes.set_xlabel("images per second")
    axes.set_title("ResNet-50 on two workers with a CPU core each", loc="left")
    save(figure, "two_workers.svg")


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "keras_fastnet"
    two_workers()
    recipes()
    accuracy_by_batch()


if __name__ == "__main__":
    main()
