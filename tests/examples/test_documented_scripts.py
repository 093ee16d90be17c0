"""Scripts in the documentation run on two workers."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.documentation import ROOT, blocks, script_of


def last_accuracy(output):
    return float(re.findall(r"accuracy: (\d\.\d+)", output)[-1])


@pytest.mark.distributed
def test_tutorial_with_three_more_lines(fastnet, tmp_path):
    (tmp_path / "train.py").write_text(script_of("tutorial.md", "train.py"))
    done = fastnet("run", "--workers", 2, tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    assert last_accuracy(done.stdout) > 0.9


@pytest.mark.parametrize(
    ("page", "name", "accuracy"),
    [
        pytest.param("tutorial.md", "large.py", 0.9, marks=pytest.mark.slow),
        ("from_multi_worker_mirrored.md", "after.py", 0.9),
        ("from_horovod.md", "after.py", 0.8),
        ("from_lars.md", "after.py", 0.9),
    ],
)
def test_scripts_of_pages(two_workers, tmp_path, page, name, accuracy):
    script = tmp_path / name
    script.write_text(script_of(page, name))
    assert (
        min(
            two_workers.run(
                "documented_script", script=str(script), folder=str(tmp_path)
            )
        )
        > accuracy
    )


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_of_the_tutorial(environment, tmp_path):
    """All in its order, in one folder, as a reader runs them."""
    page = ROOT / "docs" / "tutorial.md"
    for block in blocks(page, "python"):
        name = re.match(r"# (\w+\.py)\n", block)[1]
        (tmp_path / name).write_text(block)
    lines = [line for block in blocks(page) for line in block.splitlines()]
    run = []
    for line in lines:
        if not re.match("python|fastnet", line):
            continue
        run.append(line)
        words = shlex.split(line, comments=True)
        if words[0] == "fastnet":
            words = ["python", "-m", "keras_fastnet.cli", *words[1:]]
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert len(run) == 5
    assert (tmp_path / "model.keras").exists()


@pytest.mark.distributed
@pytest.mark.slow
def test_script_before_the_migration_fails(fastnet, tmp_path):
    """What the page says of TensorFlow's own strategy (keras#20585) is so."""
    script = tmp_path / "before.py"
    script.write_text(script_of("from_multi_worker_mirrored.md", "before.py"))
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
@pytest.mark.smoke
def test_multi_worker_tutorial(fastnet):
    """TensorFlow's tutorial trains with the strategy replaced (keras#20585)."""
    script = ROOT / "benchmarks" / "multi_worker_tutorial" / "tutorial.py"
    done = fastnet("run", "--workers", 2, script)
    assert done.returncode == 0, done.stderr
    assert "Epoch 3/3" in done.stdout
    assert last_accuracy(done.stdout) > 0.9
