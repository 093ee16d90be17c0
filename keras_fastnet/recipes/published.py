"""The published training runs: one row each, every value with its source."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from keras_fastnet.schedules import ScaledRate, linear_scaling, square_root_scaling


class Setting(NamedTuple):
    """One value of a recipe, and its source.

    Attributes:
        value: The value.
        origin: `"paper"`: the paper states the value. `"rule"`: a rule of the paper,
            applied to your sizes. `"chosen"`: chosen by keras_fastnet, since the paper
            does not state it.
        source: Where the paper states it, or why it was chosen.
    """

    value: Any
    origin: Literal["paper", "rule", "chosen"]
    source: str

    def adapted(self, value: Any, source: str) -> "Setting":
        """Returns the setting with a value computed from it for other sizes."""
        return Setting(value, "rule" if self.origin == "paper" else self.origin, source)


def paper(value: Any, source: str) -> Setting:
    """Returns a value that the paper states in `source`."""
    return Setting(value, "paper", source)


def chosen(value: Any, why: str) -> Setting:
    """Returns a value that keras_fastnet chose, and the reason."""
    return Setting(value, "chosen", why)


@dataclasses.dataclass(frozen=True)
class Published:
    """A published training: a row of the table.

    Attributes:
        result: The result that the authors published, with batch and hardware.
        batch: The global batch, for ImageNet.
        settings: Settings that hold for every batch.
        by_batch: Settings that differ between batches. Other batches use those of the
            nearest one, with a scaled rate.
        scaling: How the rate is scaled with the batch.
        scaling_is_published: Whether the authors state that scaling.
        steps: Factors of the peak by epoch, for a decay in steps. Empty for a
            polynomial decay of power 2.
        end_rate: The rate at the end of a polynomial decay.
        growth: The factor by which the batch grows after the warm-up.
        device_batch: Per-replica batch, unless you state one: 32 as in Goyal et al.
            (arXiv 1706.02677, section 2.1).
    """

    result: str
    batch: Setting
    settings: Mapping[str, Setting]
    by_batch: Mapping[int, Mapping[str, Setting]]
    scaling: Callable[[float, int, int], ScaledRate] = square_root_scaling
    scaling_is_published: bool = True
    steps: Mapping[float, float] = dataclasses.field(default_factory=dict)
    end_rate: float = 0.0
    growth: int = 1
    device_batch: int = 32


_GOYAL_5 = "section 5.1"
_YOU = "the group's PyTorch settings for ResNet-50"
_MLPERF = "reference convergence points of MLPerf training 4.0, ResNet-50"
_REFERENCE = "MLPerf's reference code"
_HERE = "tuned on CIFAR-10, benchmarks/large_batch_accuracy"

# Values of most rows; rows state only different ones.
_COMMON = {
    "warmup_start": chosen(0.0, "as MLPerf's reference"),
    "nesterov": chosen(False, "the source names none"),
    "momentum_correction": chosen(False, "LARS's Algorithm 1 has none"),
    "weight_decay": chosen(1e-4, "as facebook2017"),
    "trust_coefficient": chosen(0.001, "as MLPerf's reference; not used by SGD"),
    "label_smoothing": chosen(0.0, "the source names none"),
    "zero_gamma": chosen(True, "as facebook2017"),
    "precision": chosen("float32", "the source names no other"),
}

facebook2017 = Published(
    "76.3 % top-1, ResNet-50 on ImageNet, batch 8,192, 256 P100, 1 h",
    batch=paper(8_192, _GOYAL_5),
    settings={
        **_COMMON,
        "model": paper("resnet50", _GOYAL_5),
        "epochs": paper(90, _GOYAL_5),
        "method": paper("sgd", f"{_GOYAL_5}, momentum without Nesterov"),
        "warmup_start": paper(0.1, "section 2.2: from the rate of batch 256"),
        "warmup_epochs": paper(5, "section 2.2"),
        "decay": paper(None, "a tenth from epochs 30, 60, 80 of 90; section 5.1"),
        "momentum": paper(0.9, _GOYAL_5),
        "nesterov": paper(False, _GOYAL_5),
        "momentum_correction": paper(True, "section 3.1, remark 3"),
        "weight_decay": paper(1e-4, f"{_GOYAL_5}; not on batch normalization"),
        "zero_gamma": paper(True, _GOYAL_5),
    },
    by_batch={256: {"peak": paper(0.1, "section 2.1")}},
    scaling=linear_scaling,
    steps={30: 0.1, 60: 0.01, 80: 0.001},
)
"""SGD with linear scaling and gradual warm-up (Goyal et al., arXiv 1706.02677)."""


ibm2017 = dataclasses.replace(
    facebook2017,
    result="33.8 % top-1, ResNet-101 on ImageNet-22K, 256 P100, 7 h; ResNet-50 on "
    "ImageNet-1K in 50 min; 95 % efficiency",
    batch=chosen(8_192, "as facebook2017: section 5.1"),
    settings={
        **{
            name: chosen(setting.value, f"as facebook2017: {setting.source}")
            for name, setting in facebook2017.settings.items()
        },
        "model": paper("resnet101", "abstract"),
        "epochs": paper(90, "abstract, for ResNet-50"),
    },
    by_batch={256: {"peak": chosen(0.1, "as facebook2017: section 2.1")}},
)
"""ResNet-101 on a grid set by hand (Cho et al., arXiv 1708.02188).

The paper is about communication: it states model, data and machines. Its numerics
follow Goyal et al., and so does this recipe. `TorusStrategy(grid=(64, 4))` is its grid,
one row per server.
"""

berkeley2017 = Published(
    "90 epochs of ResNet-50 on ImageNet, batch 32,768, in 20 min on 2,048 KNL; batch "
    "32K loses 0.6 points",
    batch=paper(32_768, "arXiv 1709.05011"),
    settings={
        **_COMMON,
        "model": paper("resnet50", "arXiv 1709.05011"),
        "epochs": paper(90, "arXiv 1709.05011, abstract"),
        "method": paper("lars", "arXiv 1708.03888, Algorithm 1"),
        "warmup_epochs": paper(14, f"at 32,768, {_YOU}"),
        "decay": paper(None, "arXiv 1708.03888, Algorithm 1: polynomial, power 2"),
        "momentum": paper(0.9, _YOU),
        "weight_decay": paper(1e-4, _YOU),
    },
    by_batch={32_768: {"peak": paper(32.0, _YOU)}},
)
"""LARS with polynomial decay (You et al., arXiv 1708.03888 and 1709.05011)."""

sony2018 = Published(
    "75.03 % top-1, ResNet-50 on ImageNet, batch 34K to 68K, 2,176 V100, 224 s",
    # 34K and 68K on 2,176 GPUs, with K = 1,024: 16 and 32 examples per GPU.
    batch=paper(34_816, "34K, from others' reports of the paper"),
    settings={
        **_COMMON,
        "model": paper("resnet50", "abstract"),
        "epochs": chosen(
            90, "as the other systems; the paper's number was not available"
        ),
        "method": paper("lars", "section 2.1"),
        "warmup_epochs": paper(5, "from others' reports of the paper"),
        "decay": chosen(None, "as LARS's Algorithm 1: power 2"),
        "momentum": chosen(0.9, "as berkeley2017"),
        "label_smoothing": chosen(0.1, "the abstract names it; 0.1 as MLPerf"),
        "precision": paper("mixed_float16", "forward and backward in float16"),
    },
    by_batch={32_768: {"peak": chosen(32.0, "as berkeley2017")}},
    growth=2,
    device_batch=16,
)
"""Batch-size control, 2-D torus, mixed precision (Mikami et al., arXiv 1811.05233).

The paper's table of batches by epoch, its rates and its coefficients were not available
when this was written. The paper is reported to state the two batches, a warm-up of five
epochs at the smaller one, float16 in the forward and backward pass, LARS, label
smoothing and the torus. All other values are chosen, as the table says.
"""

mlperf = Published(
    "75.9 % top-1, ResNet-50 on ImageNet, in 40 to 84.5 epochs at batch 4K to 64K",
    batch=paper(32_768, _MLPERF),
    settings={
        **_COMMON,
        "model": paper("resnet50", _MLPERF),
        "method": paper("lars", _MLPERF),
        "warmup_start": paper(0.0, _REFERENCE),
        "decay": paper(None, f"{_MLPERF}: power 2, to 1e-4"),
        "momentum_correction": paper(False, _REFERENCE),
        "trust_coefficient": paper(0.001, _REFERENCE),
        "label_smoothing": paper(0.1, _REFERENCE),
    },
    by_batch={
        batch: {
            "epochs": paper(-int(-epochs // 1), f"{_MLPERF}, at {batch:,}: {epochs:g}"),
            "peak": paper(rate, f"{_MLPERF}, at {batch:,}"),
            "warmup_epochs": paper(warm_up, f"{_MLPERF}, at {batch:,}"),
            "momentum": paper(momentum, f"{_MLPERF}, at {batch:,}"),
            "weight_decay": paper(decay, f"{_MLPERF}, at {batch:,}"),
        }
        for batch, epochs, rate, warm_up, momentum, decay in (
            (4_096, 40, 10.0, 5, 0.9, 2e-4),
            (8_192, 42, 17.0, 5, 0.9, 2e-4),
            (32_768, 56, 21.2, 16, 0.94, 2.5e-5),
            (65_536, 84.5, 24.7, 31, 0.952, 1e-4),
        )
    },
    scaling_is_published=False,
    end_rate=1e-4,
)
"""LARS with MLPerf's reference hyperparameters, for batches of 4K to 64K."""

google2021 = Published(
    "75.92 % top-1, ResNet-50 on ImageNet, batch 32,768, in 2,512 updates, as LARS",
    batch=paper(32_768, "arXiv 2102.06356"),
    settings={
        **_COMMON,
        "model": paper("resnet50", "arXiv 2102.06356"),
        "epochs": Setting(63, "rule", "2,512 updates, 40 an epoch"),
        "method": paper("sgd", "arXiv 2102.06356, abstract: no trust ratio"),
        "warmup_epochs": chosen(18, "16 of 56 epochs, as mlperf at 32,768"),
        "decay": chosen(None, "power 2, as mlperf"),
        "momentum": chosen(0.9, f"{_HERE}; the paper's was not available"),
        "nesterov": paper(True, "arXiv 2102.06356, abstract"),
        "momentum_correction": chosen(False, "as mlperf"),
        "label_smoothing": chosen(0.1, "as mlperf"),
    },
    by_batch={1_280: {"peak": chosen(1.6, f"{_HERE}; tune it on your data")}},
)
"""Tuned Nesterov momentum without a trust ratio (Nado et al., arXiv 2102.06356).

The paper shows that it matches LARS at batch 32,768 if it is tuned as carefully. The
values that the paper's search found were not available when this was written: those
marked `chosen` are not the paper's, and may not reach its accuracy. Try half and twice
the rate before you compare.
"""

RECIPES = {
    "facebook2017": facebook2017,
    "ibm2017": ibm2017,
    "berkeley2017": berkeley2017,
    "sony2018": sony2018,
    "mlperf": mlperf,
    "google2021": google2021,
}
"""All published training runs, by name."""
