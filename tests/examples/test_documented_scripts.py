"""Scripts that the documents name run on two workers."""

import re

import pytest

from tests.documentation import ROOT, blocks


def last_accuracy(output):
    return float(re.findall(r"accuracy: (\d\.\d+)", output)[-1])


@pytest.mark.distributed
@pytest.mark.slow
def test_script_before_the_migration_fails(fastnet, tmp_path):
    """What the page says of TensorFlow's own strategy (keras#20585) is so."""
    script = tmp_path / "before.py"
    page = ROOT / "docs" / "from_multi_worker_mirrored.md"
    before, _ = blocks(page, "python")
    script.write_text(before.text)
    done = fastnet("run", "--workers", 2, script)
    assert done.returncode != 0
    assert "PerReplica" in done.stderr


@pytest.mark.distributed
@pytest.mark.slow
def test_batch_growth_example(fastnet):
    script = ROOT / "examples" / "batch_growth.py"
    done = fastnet("run", "--workers", 2, script)
    assert done.returncode == 0, done.stderr
    # 1,437 images in 12 micro-batches: 4 epochs of 6 updates, 16 of 3 and 20 of 2.
    assert "112 updates, test accuracy 9" in done.stdout


@pytest.mark.distributed
def test_multi_worker_tutorial(fastnet):
    """TensorFlow's tutorial trains with the strategy replaced (keras#20585)."""
    script = ROOT / "benchmarks" / "multi_worker_tutorial" / "tutorial.py"
    done = fastnet("run", "--workers", 2, script)
    assert done.returncode == 0, done.stderr
    assert "Epoch 3/3" in done.stdout
    assert last_accuracy(done.stdout) > 0.9
