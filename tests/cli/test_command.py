"""The `fastnet` command."""

import pytest


@pytest.mark.parametrize(
    "words",
    ["run --workers 1 missing.py", "plan --ranks 4 --parameters 9 --compute-ms 1"],
)
def test_nothing_heavy_is_imported_for_an_answer(python, words):
    code = (
        "import sys; from keras_fastnet.cli import main; "
        f"main('{words}'.split()); "
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert done.stdout.endswith("[]\n"), done.stderr
