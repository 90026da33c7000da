#!/usr/bin/env python3
"""Loads the weights that zoo_check --save has written into the models that the files were exported from, made anew
with other weights, and compares what they compute in evaluation with what gpipe has computed.

    tests/zoo/load_back.py FOLDER
"""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import export_zoo  # noqa: E402
from export_zoo import export_model  # noqa: E402


def load_back(network, folder):
    """None, or what is wrong."""
    torch.manual_seed(1)
    model = network.make()
    weights = export_model.read_safetensors(folder / f"{network.name}.weights.safetensors")
    # A weight that two modules share is there once, under its first name: the model has it under both.
    own_names = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected:
        return f"the model does not have {unexpected}"
    if own_names & set(missing):
        return f"the file does not have {sorted(own_names & set(missing))}"
    for name, tensor in model.state_dict().items():
        if name in weights and not torch.equal(tensor, weights[name]):
            return f"{name} is not what the file has"
    inputs = export_model.Inputs(model, [export_model.Input(text) for text in network.inputs])
    expected = export_model.read_safetensors(folder / f"{network.name}.outputs.safetensors")["output"]
    with torch.no_grad():
        arguments = [argument[: len(expected)] for argument in inputs.arguments(export_zoo.NUM_SAMPLES)]
        got = export_model.tensors_of(model.eval()(*arguments))[0]
    return export_model.difference([got], [expected])


def main():
    folder = pathlib.Path(sys.argv[1])
    networks = {network.name: network for network in export_zoo.all_networks()[0]}
    failed = False
    for name in (folder / "models.txt").read_text().split():
        wrong = load_back(networks[name], folder)
        print(f"{name}: {wrong or 'loaded, and computes the same'}")
        failed = failed or wrong is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
