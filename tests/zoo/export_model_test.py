#!/usr/bin/env python3
"""Tests of examples/export_model.py, which is run as its users run it."""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "checkpoint")]
import export_model  # noqa: E402
import independent_reader  # noqa: E402

MODELS = """
from typing import Dict, Tuple
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(self.linear(x))

class Rows(Net):
    def forward(self, x):
        return self.linear(x).view(int(x.shape[0]), -1) + torch.arange(len(x.tolist()))[:, None]

class Unscriptable(Net):
    def forward(self, x, **rest):
        return self.drop(self.linear(x))

class Branch(Unscriptable):
    def forward(self, x, **rest):
        return self.linear(x) * (2 if torch.jit.is_tracing() else 3)

class WasteDraws(Unscriptable):
    def forward(self, x, **rest):
        torch.rand(1)
        return self.drop(self.linear(x))

class Structured(Net):
    def forward(self, pair: Tuple[torch.Tensor, torch.Tensor], features: Dict[str, torch.Tensor]):
        return self.linear(pair[0] + pair[1]) * features["mask"]

class Images(Net):
    def forward(self, x):
        return torch.zeros(len(x), 2, 3, 3) * self.linear(x).sum()

class Number(Net):
    def forward(self, x):
        return self.linear(x).sum(1)

def number():
    return 3

def fails():
    raise ValueError("no such thing")
"""


class ExportModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "models.py").write_text(MODELS)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def export(self, *arguments):
        """What is said, and the module."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            export_model.main([*arguments, "-o", "out.pt"])
        return said.getvalue(), torch.jit.load("out.pt")

    def assert_refused(self, says, *arguments):
        said = io.StringIO()
        with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(said):
            export_model.main([*arguments, "-o", "out.pt"])
        self.assertIn(says, f"{said.getvalue()}{end.exception.code}")
        self.assertFalse(os.path.exists("out.pt"))

    def test_is_a_program_that_ends_with_an_error_of_one_line(self):
        command = [sys.executable, export_model.__file__, "models.py:Nothing", "-o", "out.pt"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr), (1, "export_model: models.py has no 'Nothing'\n"))

    def test_compiles_what_can_be_compiled_and_keeps_the_names(self):
        text, module = self.export("models.py:Net", "--input", "4", "--set", "width=7")
        self.assertIn("compiled; inputs: x", text)
        self.assertNotIn("note:", text)
        self.assertEqual(list(module.state_dict()), ["linear.weight", "linear.bias"])
        self.assertEqual(module.linear.weight.shape, (7, 4))
        self.assertTrue(module.training)
        self.assertFalse(module.eval().drop.training)

    def test_exports_a_model_of_torchvision(self):
        text, module = self.export("torchvision:squeezenet1_1", "--set", "num_classes=5", "--input", "3x32x32")
        self.assertIn("compiled", text)
        self.assertEqual(module(torch.randn(2, 3, 32, 32)).shape, (2, 5))

    def test_traces_the_rest_and_says_that_the_mode_stays(self):
        text, module = self.export("models.py:Unscriptable", "--input", "4")
        self.assertIn("traced; inputs: x", text)
        self.assertIn("it was traced, because torch.jit.script cannot compile it", text)
        self.assertIn("has the mode of training for ever (aten::dropout)", text)
        self.assertIn("--mode eval", text)
        out = module.eval()(torch.ones(64, 4))
        self.assertTrue((out == 0).any())

    def test_a_trace_in_evaluation_has_no_dropout(self):
        text, module = self.export("models.py:Unscriptable", "--input", "4", "--mode", "eval")
        self.assertNotIn("for ever", text)
        self.assertTrue((module(torch.ones(64, 4)) != 0).all())

    def test_says_that_a_trace_has_a_fixed_number_of_samples(self):
        text, _ = self.export("models.py:Rows", "--input", "4", "--how", "trace")
        self.assertIn("fits micro-batches of 2 samples only", text)

    def test_refuses_a_trace_that_is_not_the_model(self):
        self.assert_refused("the trace is not the model", "models.py:Branch", "--input", "4", "--how", "trace")

    def test_says_that_a_trace_leaves_out_draws_that_nothing_uses(self):
        text, _ = self.export("models.py:WasteDraws", "--input", "4")
        self.assertIn("the trace draws other random numbers than the model", text)

    def test_makes_tuples_and_dictionaries_of_inputs(self):
        text, module = self.export(
            "models.py:Structured",
            "--input",
            "pair.0=4",
            "--input",
            "pair.1=4",
            "--input",
            "features.mask=1",
            "--inputs",
            "in.safetensors",
        )
        self.assertIn("compiled; inputs: pair.0, pair.1, features.mask", text)
        x = torch.ones(2, 4)
        self.assertEqual(module((x, x), {"mask": torch.ones(2, 1)}).shape, (2, 4))
        self.assertEqual(set(self.read("in.safetensors")), {"pair.0", "pair.1", "features.mask"})

    def read(self, name):
        return independent_reader.read(self.folder / name)

    def test_writes_samples_and_targets(self):
        text, _ = self.export(
            "models.py:Net",
            "--input",
            "4",
            "--inputs",
            "in.safetensors",
            "--targets",
            "t.safetensors",
            "--samples",
            "5",
        )
        self.assertIn("in.safetensors: 5 random samples", text)
        self.assertEqual(self.read("in.safetensors")["x"][:2], ["F32", [5, 4]])
        self.assertEqual(self.read("t.safetensors")["target"][:2], ["I64", [5]])

    def test_targets_of_a_mean_squared_error_are_as_the_output(self):
        self.export("models.py:Net", "--input", "4", "--targets", "t.safetensors", "--loss", "mse", "--samples", "3")
        self.assertEqual(self.read("t.safetensors")["target"][:2], ["F32", [3, 4]])

    def test_targets_of_images_are_a_class_a_pixel(self):
        self.export("models.py:Images", "--input", "4", "--targets", "t.safetensors", "--samples", "3")
        self.assertEqual(self.read("t.safetensors")["target"][:2], ["I64", [3, 3, 3]])

    def test_the_same_seed_gives_the_same_weights_and_samples(self):
        bytes_of = {}
        for run in ("one", "two"):
            _, module = self.export("models.py:Net", "--input", "4", "--seed", "3", "--inputs", f"{run}.safetensors")
            bytes_of[run] = ((self.folder / f"{run}.safetensors").read_bytes(), module.linear.weight.tolist())
        self.assertEqual(bytes_of["one"], bytes_of["two"])

    def test_loads_weights_first(self):
        torch.manual_seed(5)
        weights = {"linear.weight": torch.randn(4, 4), "linear.bias": torch.randn(4)}
        torch.save(weights, self.folder / "w.pt")
        export_model.write_safetensors(self.folder / "w.safetensors", weights)
        for file in ("w.pt", "w.safetensors"):
            _, module = self.export("models.py:Net", "--input", "4", "--weights", file)
            self.assertTrue(torch.equal(module.linear.weight, weights["linear.weight"]), file)

    def test_safetensors_are_the_same_with_and_without_the_package(self):
        tensors = {
            "b": torch.arange(6, dtype=torch.int64).view(2, 3),
            "a": torch.randn(3),
            "none": torch.empty(0, 2),
            "half": torch.randn(2).half(),
            "flag": torch.tensor([True, False]),
        }
        export_model.write_safetensors(self.folder / "one.safetensors", tensors, {"key": "value"})
        package = sys.modules.get("safetensors.torch")
        sys.modules["safetensors.torch"] = None  # as if it were not installed
        try:
            export_model.write_safetensors(self.folder / "two.safetensors", tensors, {"key": "value"})
        finally:
            del sys.modules["safetensors.torch"]
            if package is not None:
                sys.modules["safetensors.torch"] = package
        self.assertEqual(self.read("one.safetensors"), self.read("two.safetensors"))
        back = export_model.read_safetensors(self.folder / "two.safetensors")
        self.assertEqual(set(back), set(tensors))
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(back[name], tensor), name)

    def test_refuses_with_a_remedy(self):
        self.assert_refused("names no model; write torchvision:NAME", "resnet18")
        self.assert_refused("torchvision.models has no 'resnet19'", "torchvision:resnet19")
        self.assert_refused("there is no file nowhere.py", "nowhere.py:Net")
        self.assert_refused("models.py has no 'Nothing'", "models.py:Nothing")
        self.assert_refused("gives a int, not a torch.nn.Module", "models.py:number")
        self.assert_refused("cannot be made: ValueError: no such thing", "models.py:fails")
        self.assert_refused("--set KEY=VALUE gives it arguments", "models.py:Net", "--set", "height=3")
        self.assert_refused("a shape is like 3x224x224", "models.py:Net", "--input", "3y4")
        self.assert_refused("forward has no argument 'z'; it has x", "models.py:Net", "--input", "z=4")
        self.assert_refused("forward takes 1 arguments (x), not 2", "models.py:Net", "--input", "4", "--input", "4")
        self.assert_refused("the model itself cannot run on x [2, 5]", "models.py:Net", "--input", "5")
        self.assert_refused(
            "torch.jit.script cannot compile it", "models.py:Unscriptable", "--input", "4", "--how", "script"
        )
        self.assert_refused("try --loss mse", "models.py:Number", "--input", "4", "--targets", "t.safetensors")


if __name__ == "__main__":
    unittest.main()
