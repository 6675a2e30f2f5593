import importlib.util
import subprocess
import sys

import pytest

LIBRARIES = ("transformers", "torchao", "bitsandbytes")


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in LIBRARIES), reason=f"needs {', '.join(LIBRARIES)}"
)
def test_after_this_package_the_noisy_libraries_are_imported_without_a_word() -> None:
    code = "import efficient_training; from transformers import Qwen2ForCausalLM; import bitsandbytes, torchao.optim"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
