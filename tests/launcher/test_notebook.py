"""`notebook_launcher` in a notebook that a kernel executes."""

import asyncio
import textwrap
import threading
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbformat.v4 import new_code_cell

from tests.documentation import ROOT

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
EXAMPLE = ROOT / "examples" / "notebook.ipynb"
CELLS = {
    "fails": """
        import json, os, threading, time

        def fail():
            rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            if rank:
                raise ValueError(f"no data on rank {rank}")
            time.sleep(200)

        fastnet.notebook_launcher(fail, workers=2)
        """,
    "cannot be copied": """
        lock = threading.Lock()
        fastnet.notebook_launcher(lambda: lock, workers=2)
        """,
    "returns what cannot be copied": """
        fastnet.notebook_launcher(threading.Lock, workers=1)
        """,
    "is interrupted": """
        def wait():
            open(f"{os.getpid()}.worker", "w").close()
            time.sleep(200)

        fastnet.notebook_launcher(wait, workers=2)
        """,
    # AutoGraph reads the source of the cell.
    "has a condition": """
        import tensorflow as tf

        def evens():
            def half(number):
                if number % 2 == 0:
                    return number // 2
                return -number

            data = tf.data.Dataset.range(5).map(half)
            return [int(number) for number in data], half

        numbers, half = fastnet.notebook_launcher(evens, workers=1)
        print(numbers, [int(n) for n in tf.data.Dataset.range(5).map(half)])
        """,
    "goes on": """
        class Pair:
            def __init__(self, first, second):
                self.first, self.second = first, second

        pair = fastnet.notebook_launcher(Pair, args=(1, 2), workers=1)
        print(isinstance(pair, Pair), pair.first + pair.second)
        """,
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The folder, and the outputs of the example's and of further cells by name."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    examples = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # It must not matter that the notebook has used TensorFlow.
    examples[0].source += "\nkeras.ops.ones(3)"
    sources = [textwrap.dedent(source).strip() for source in CELLS.values()]
    further = [new_code_cell(source) for source in sources]
    for cell in further:
        cell.metadata["tags"] = ["raises-exception"]
    notebook.cells += further
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(folder)}}
    )
    executed = threading.Event()
    arguments = (client, folder, executed)
    interrupter = threading.Thread(target=interrupt, args=arguments)
    interrupter.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Within it, a kernel does not show what its child processes write.
            patch.delenv("PYTEST_CURRENT_TEST")
            client.execute()
    finally:
        executed.set()
        interrupter.join()
    outputs = dict(zip(CELLS, (cell.outputs for cell in further), strict=True))
    outputs |= {number: cell.outputs for number, cell in enumerate(examples)}
    return folder, outputs


def interrupt(client, folder, executed):
    """Interrupts the kernel, as the button does, when both workers wait."""
    while not executed.wait(0.05):
        if len(list(folder.glob("*.worker"))) == 2:
            asyncio.run(client.km.interrupt_kernel())
            return


def printed(outputs, stream):
    return "".join(out.text for out in outputs if out.get("name") == stream)


def error_of(outputs):
    (error,) = [out for out in outputs if out.output_type == "error"]
    return error.ename, error.evalue


def test_rank_0_is_shown_and_its_result_returned(executed):
    _, outputs = executed
    shown = printed(outputs[1], "stdout")
    assert shown.count("Epoch 3/3") == 1
    # The model and its history, in the notebook's process.
    first, _, last = eval(printed(outputs[2], "stdout").splitlines()[0])
    (result,) = [out for out in outputs[2] if out.output_type == "execute_result"]
    accuracy = eval(result.data["text/plain"])["accuracy"]
    assert first < last <= accuracy < 1
    assert accuracy > 0.85


def test_the_first_failure_is_raised_with_its_traceback(executed):
    name, message = error_of(executed[1]["fails"])
    assert name == "RuntimeError"
    lines = message.splitlines()
    assert '    raise ValueError(f"no data on rank {rank}")' in lines
    assert lines[-1].endswith("worker 1 failed first: ValueError: no data on rank 1")
    assert "no data" not in printed(executed[1]["fails"], "stderr")


def test_tensors_decide_in_functions_of_a_cell(executed):
    shown = printed(executed[1]["has a condition"], "stdout")
    assert shown.splitlines()[-1] == "[0, -1, 1, -3, 2] [0, -1, 1, -3, 2]"


def test_what_cannot_be_copied_is_named(executed):
    name, message = error_of(executed[1]["cannot be copied"])
    assert name == "TypeError"
    assert "_thread.lock" in message
    name, message = error_of(executed[1]["returns what cannot be copied"])
    assert name == "RuntimeError"
    assert "TypeError: What the function returns must be" in message


def test_an_interrupt_ends_the_workers_and_not_the_kernel(executed):
    folder, outputs = executed
    assert error_of(outputs["is interrupted"])[0] == "KeyboardInterrupt"
    workers = [path.stem for path in folder.glob("*.worker")]
    assert len(workers) == 2
    assert not any(Path("/proc", worker).exists() for worker in workers)
    # What the worker returns is of the notebook's own class.
    assert printed(outputs["goes on"], "stdout") == "True 3\n"
