#!/usr/bin/env python3
"""Exports a model that is written in Python to TorchScript, so that gpipe can cut and train it.

    examples/export_model.py torchvision:resnet18 -o resnet18.pt --set num_classes=10 --input 3x64x64
    examples/export_model.py transformers:gpt2 -o gpt2.pt --head causal-lm --input input_ids=64:below=50257
    examples/export_model.py my_model.py:Net -o net.pt --input 16

A model is one of
  torchvision:NAME     what torchvision.models.NAME makes
  timm:NAME            what timm.create_model(NAME) makes
  transformers:NAME    a model of Hugging Face: a folder or a name of its hub; with --random a type, such as bert
  FILE.py:NAME         a class or a function in a file of your own; called with what --set says, it gives a module

It is compiled (torch.jit.script) if Python can do that, else traced with an example, in the mode of training. A
compiled model has train() and eval(); a traced one has the mode that it was traced in. Either way the result is then
run on samples and compared with the model. The names of parameters and buffers stay those of the model, so that
load_state_dict takes the weights that gpipe saves.

--inputs and --targets also write a mini-batch of random samples to try it with: safetensors files, written by the
package safetensors if it is installed, and by this program if not. Works with the torch of Debian (apt-get install
python3-torch python3-torchvision) and with that of PyPI. gpipe reads files of the torch that it was built with and of
older ones, and those of newer ones as long as they use no newer operations.
"""
import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import pathlib
import struct
import sys
import warnings

try:
    import torch
except ImportError:
    sys.exit(
        "export_model: there is no torch for this Python: apt-get install python3-torch, and run this with "
        "/usr/bin/python3; or pip install torch"
    )

HEADS = {
    "none": "AutoModel",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "image-classification": "AutoModelForImageClassification",
}
# Samples of the example that a model is traced with, and of the two on which it is checked afterwards.
EXAMPLE_ROWS = 2
CHECKED_ROWS = (2, 3)


class ExportError(Exception):
    """What is wrong and what to do about it, in one line."""


def one_line(error):
    """The first line that says something: TorchScript adds pages of source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ~^<-")]
    first = lines[0].rstrip(":") if lines else ""
    return f"{type(error).__name__}: {first[:300]}"


# Where models come from.


def from_torchvision(name, settings, pretrained):
    try:
        import torchvision
    except ImportError as error:
        raise ExportError(
            f"there is no torchvision: apt-get install python3-torchvision, or pip install torchvision ({error})"
        ) from error
    make = getattr(torchvision.models, name, None)
    if not callable(make):
        known = ", ".join(
            sorted(
                key
                for key, value in vars(torchvision.models).items()
                if inspect.isfunction(value) and "weights" in inspect.signature(value).parameters
            )
        )
        raise ExportError(f"torchvision.models has no '{name}'; it has {known}")
    if name in ("googlenet", "inception_v3") and not pretrained:
        settings.setdefault("init_weights", True)
    return make(weights="DEFAULT" if pretrained else None, **settings)


def from_timm(name, settings, pretrained):
    try:
        import timm
    except ImportError as error:
        raise ExportError(f"there is no timm: pip install timm ({error})") from error
    return timm.create_model(name, pretrained=pretrained, scriptable=True, **settings)


def from_transformers(name, settings, head, is_random):
    try:
        import transformers
    except ImportError as error:
        raise ExportError(f"there is no transformers: pip install transformers ({error})") from error
    make = getattr(transformers, HEADS[head])
    settings.setdefault("use_cache", False)
    if not is_random:
        return make.from_pretrained(name, **settings)
    if (pathlib.Path(name) / "config.json").is_file():
        config = transformers.AutoConfig.from_pretrained(name, **settings)
    else:
        config = transformers.AutoConfig.for_model(name, **settings)
    return make.from_config(config)


def from_file(path, name, settings):
    file = pathlib.Path(path)
    if not file.is_file():
        raise ExportError(f"there is no file {path}; a model of your own is given as FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # TorchScript looks the source of classes up there
    sys.path.insert(0, str(file.resolve().parent))
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ExportError(f"{path} has no '{name}'")
    return getattr(module, name)(**settings)


def make_model(options):
    """The module that the command line names, in the mode to export."""
    source, colon, name = options.model.rpartition(":")
    if not colon or not name:
        raise ExportError(
            f"'{options.model}' names no model; write torchvision:NAME, timm:NAME, transformers:NAME or FILE.py:NAME"
        )
    settings = dict(options.settings)
    torch.manual_seed(options.seed)
    try:
        if source == "torchvision":
            model = from_torchvision(name, settings, options.pretrained)
        elif source == "timm":
            model = from_timm(name, settings, options.pretrained)
        elif source == "transformers":
            model = from_transformers(name, settings, options.head, options.random)
        else:
            model = from_file(source, name, settings)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(
            f"{options.model} cannot be made: {one_line(error)}; --set KEY=VALUE gives it arguments"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"{options.model} gives a {type(model).__name__}, not a torch.nn.Module")
    if options.weights:
        load_weights(model, options.weights)
    return model.train(options.mode == "train")


def load_weights(model, path):
    if path.endswith(".safetensors"):
        model.load_state_dict(read_safetensors(path))
    else:
        model.load_state_dict(torch.load(path, map_location="cpu"))


# Inputs.


class Input:
    """One tensor of the mini-batch, as --input describes it: [NAME=]SHAPE[:below=N], the shape of one sample."""

    def __init__(self, text):
        name, equals, rest = text.rpartition("=")
        self.below = None
        if ":below" in name:
            name, equals, rest = text.partition(":below=")
            if not rest.isdigit() or int(rest) < 1:
                raise argparse.ArgumentTypeError(f"'{text}': after below= stands a number of at least 1")
            self.below = int(rest)
            name, equals, rest = name.rpartition("=")
        self.name = name if equals else None
        try:
            self.shape = [int(size) for size in rest.split("x")] if rest != "scalar" else []
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"'{text}': a shape is like 3x224x224, without the samples; write NAME=SHAPE for an input by name, and "
                "SHAPE:below=N for whole numbers"
            ) from None

    def sample(self, rows, generator):
        if self.below is None:
            return torch.randn([rows, *self.shape], generator=generator)
        return torch.randint(self.below, [rows, *self.shape], generator=generator)


class Inputs:
    """The tensors of a mini-batch, and the arguments of forward that they make: "x" is one, "pair.0" and "pair.1" are
    in a tuple or a list, "features.mask" is in a dictionary."""

    def __init__(self, model, inputs, seed=0):
        parameters = inspect.signature(model.forward).parameters
        for position, each in enumerate(inputs):
            if each.name is None:
                if position >= len(parameters):
                    raise ExportError(
                        f"forward takes {len(parameters)} arguments ({', '.join(parameters)}), not {len(inputs)}"
                    )
                each.name = list(parameters)[position]
            elif each.name.partition(".")[0] not in parameters:
                raise ExportError(f"forward has no argument '{each.name}'; it has {', '.join(parameters)}")
        self.inputs = inputs
        self.seed = seed
        self.names = [each.name for each in inputs]
        self.argument_names = list(dict.fromkeys(name.partition(".")[0] for name in self.names))
        self.lists = [name for name in self.argument_names if "list" in str(parameters[name].annotation).lower()]

    def tensors(self, rows):
        generator = torch.Generator().manual_seed(self.seed)
        return [each.sample(rows, generator) for each in self.inputs]

    def arguments(self, rows):
        """By position; the same at each call."""
        values = {}
        for name, tensor in zip(self.names, self.tensors(rows)):
            argument, dot, element = name.partition(".")
            if not dot:
                values[argument] = tensor
            elif element.isdigit():
                values.setdefault(argument, []).append(tensor)
            else:
                values.setdefault(argument, {})[element] = tensor
        return tuple(
            tuple(value) if isinstance(value, list) and name not in self.lists else value
            for name, value in values.items()
        )


# Export.


def tensors_of(value):
    """The tensors in an output, in the order in which gpipe gives them to a loss."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_of(each)]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_of(each)]
    return []


def make_positional(model, names, returns_dict):
    """Gives the model a forward that can be traced: it takes the arguments `names` by position and returns a tuple."""
    parameters = list(inspect.signature(model.forward).parameters)
    if not returns_dict and parameters[: len(names)] == names:
        return
    forward = model.forward

    def call(*arguments):
        result = forward(**dict(zip(names, arguments)))
        outputs = tuple(tensors_of(result))
        return outputs[0] if len(outputs) == 1 else outputs

    call.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    model.forward = call


def run(module, arguments, seed):
    """The outputs, with the draws of `seed`; the buffers are then as they were before."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    torch.manual_seed(seed)
    try:
        with torch.no_grad(), torch.jit.optimized_execution(False):
            return tensors_of(module(*arguments))
    finally:
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])


def difference(got, expected):
    """None, or in what two lists of outputs differ beyond rounding."""
    if len(got) != len(expected):
        return f"it has {len(got)} outputs, the model {len(expected)}"
    for index, (one, other) in enumerate(zip(got, expected)):
        if one.shape != other.shape:
            return f"output {index} is {list(one.shape)}, that of the model {list(other.shape)}"
        if not torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"output {index} differs by {(one.double() - other.double()).abs().max().item():.3g}"
    return None


def check(exported, model, inputs, rows):
    """None, or why the exported module is not the model for mini-batches of that many rows."""
    expected = run(model, inputs.arguments(rows), rows)
    try:
        return difference(run(exported, inputs.arguments(rows), rows), expected)
    except Exception as error:
        return one_line(error)


def bakes_mode(exported):
    """The operations of a trace that are of training for ever."""
    text = str(exported.inlined_graph)
    kinds = (
        "aten::dropout",
        "aten::feature_dropout",
        "aten::batch_norm",
        "aten::_batch_norm_impl_index",
        "aten::bernoulli",
        "aten::rrelu",
        "aten::lstm",
        "aten::gru",
    )
    return [kind for kind in kinds if kind + "(" in text or kind + "_(" in text]


class Exported:
    """A TorchScript module, how it was made ("script" or "trace"), and what its user has to know."""

    def __init__(self, module, how, remarks):
        self.module = module
        self.how = how
        self.remarks = remarks


def script(model, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(model)
    for rows in CHECKED_ROWS:
        why = check(module, model, inputs, rows)
        if why:
            raise ExportError(f"the compiled module is not the model: {why}")
    return module


def trace_once(model, inputs):
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(model, inputs.arguments(EXAMPLE_ROWS), check_trace=False)
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return module


def draws_alone_differ(model, inputs):
    """Whether a trace of the model in training differs from it by its draws only: one in evaluation does not. A trace
    leaves out draws that nothing uses, so that those after them are others."""
    model.eval()
    try:
        return check(trace_once(model, inputs), model, inputs, EXAMPLE_ROWS) is None
    finally:
        model.train()


def trace(model, inputs):
    """The module, and the remarks about it."""
    make_positional(model, inputs.argument_names, isinstance(call_by_name(model, inputs), dict))
    module = trace_once(model, inputs)
    baked = bakes_mode(module)  # before it runs: libtorch shows less of the graph afterwards
    remarks = []
    why = check(module, model, inputs, EXAMPLE_ROWS)
    has_own_draws = bool(why) and model.training and draws_alone_differ(model, inputs)
    if has_own_draws:
        remarks.append("the trace draws other random numbers than the model, which draws some that it does not use")
    elif why:
        raise ExportError(
            f"the trace is not the model, which seems to depend on values that a trace cannot see: {why}; make it "
            "compilable with torch.jit.script"
        )
    if baked and model.training:
        remarks.append(
            f"a trace has the mode of training for ever ({', '.join(baked)}): eval() changes nothing; to evaluate, "
            "export it again with --mode eval, and load the trained weights into that"
        )
    for rows in CHECKED_ROWS if not has_own_draws else ():
        why = rows != EXAMPLE_ROWS and check(module, model, inputs, rows)
        if why:
            remarks.append(
                f"the trace fits micro-batches of {EXAMPLE_ROWS} samples only, since the model computes with their "
                f"number in Python: {why}"
            )
    return module, remarks


def call_by_name(model, inputs):
    """What the model itself returns."""
    arguments = dict(zip(inputs.argument_names, inputs.arguments(EXAMPLE_ROWS)))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.no_grad():
            return model(**arguments)
    except Exception as error:
        shapes = ", ".join(
            f"{name} {list(value.shape)}" for name, value in zip(inputs.names, inputs.tensors(EXAMPLE_ROWS))
        )
        raise ExportError(
            f"the model itself cannot run on {shapes}: {one_line(error)}; --input says the shape of a sample"
        ) from error
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])


def export(model, inputs, how="auto"):
    """Compiles the model if that can be, else traces it; `how` may ask for one of them."""
    call_by_name(model, inputs)
    remarks = []
    if how in ("auto", "script"):
        parameters = list(inspect.signature(model.forward).parameters)
        try:
            if how == "auto" and parameters[: len(inputs.argument_names)] != inputs.argument_names:
                raise ExportError(f"{', '.join(inputs.argument_names)} are not the first arguments of forward")
            return Exported(script(model, inputs), "script", remarks)
        except Exception as error:
            if how == "script":
                raise ExportError(f"torch.jit.script cannot compile it: {one_line(error)}; try --how trace") from error
            remarks.append(f"it was traced, because torch.jit.script cannot compile it: {one_line(error)}")
    try:
        module, more = trace(model, inputs)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"torch.jit.trace cannot trace it: {one_line(error)}") from error
    return Exported(module, "trace", remarks + more)


# Safetensors.

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def bytes_of(tensor):
    storage = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(storage.view(torch.uint8).numpy()) if storage.numel() else b""


def write_safetensors(path, tensors, metadata=None):
    """With the package safetensors if it is installed, else by the description of the format."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        from safetensors.torch import save_file
    except ImportError:
        header, data = {"__metadata__": metadata} if metadata else {}, []
        end = 0
        for name, tensor in sorted(tensors.items()):
            data.append(bytes_of(tensor))
            begin, end = end, end + len(data[-1])
            header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    else:
        save_file(tensors, str(path), metadata)


def read_safetensors(path):
    """With nothing but torch, so that weights that gpipe has saved can be loaded anywhere."""
    content = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    types_of = {name: dtype for dtype, name in TYPES.items()}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, shape = types_of[entry["dtype"]], entry["shape"]
        data = bytearray(content[8 + size + begin : 8 + size + end])
        tensors[name] = torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
    return tensors


# Targets.


def sample_targets(model, inputs, options):
    """Random targets for as many samples as the options say."""
    output = run(model, inputs.arguments(EXAMPLE_ROWS), options.seed)[0]
    return targets_for(output.new_empty([options.samples, *output.shape[1:]]), options.loss, options.seed)


def targets_for(output, loss, seed):
    """Random targets for an output: a class for each row or position, or an array of its shape."""
    generator = torch.Generator().manual_seed(seed + 1)
    if loss == "mse":
        return torch.randn(output.shape, generator=generator)
    if output.dim() == 2:
        return torch.randint(output.size(1), [output.size(0)], generator=generator)
    if output.dim() == 3:  # samples x positions x classes
        return torch.randint(output.size(2), list(output.shape[:2]), generator=generator)
    if output.dim() > 3:  # samples x classes x height x width
        return torch.randint(output.size(1), [output.size(0), *output.shape[2:]], generator=generator)
    raise ExportError(
        f"for --loss cross-entropy the first output has a score for each class, and not the shape {list(output.shape)}; "
        "try --loss mse"
    )


def setting(text):
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="export_model.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="torchvision:NAME, timm:NAME, transformers:NAME or FILE.py:NAME")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the TorchScript file to write, such as model.pt"
    )
    parser.add_argument(
        "--how",
        choices=["auto", "script", "trace"],
        default="auto",
        help="compile it, trace it, or (auto, the default) compile it if that can be",
    )
    parser.add_argument(
        "--mode", choices=["train", "eval"], default="train", help="the mode a trace has for ever; default: train"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        type=setting,
        action="append",
        default=[],
        help="an argument for what makes the model, such as num_classes=10; may be repeated",
    )
    parser.add_argument(
        "--input",
        dest="inputs",
        metavar="[NAME=]SHAPE[:below=N]",
        type=Input,
        action="append",
        help="the shape of one sample of an input: 3x224x224 (the default); with below=N whole numbers, such as "
        "tokens, from 0 to N-1; may be repeated",
    )
    parser.add_argument(
        "--pretrained", action="store_true", help="torchvision, timm: with trained weights, which are downloaded"
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="load them first: a state_dict that torch.save wrote, or safetensors"
    )
    parser.add_argument(
        "--head", choices=HEADS, default="sequence-classification", help="transformers: what the model is for"
    )
    parser.add_argument(
        "--random",
        action="store_true",
        help="transformers: random weights; then NAME is a folder, or a type such as bert, which --set configures",
    )
    parser.add_argument(
        "--inputs", dest="inputs_file", metavar="FILE", help="also write random samples: in.safetensors"
    )
    parser.add_argument(
        "--targets", dest="targets_file", metavar="FILE", help="also write random targets: targets.safetensors"
    )
    parser.add_argument("--samples", type=int, default=16, metavar="N", help="how many samples those are; default: 16")
    parser.add_argument(
        "--loss",
        choices=["cross-entropy", "mse"],
        default="cross-entropy",
        help="the loss that the targets are for; default: cross-entropy",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random weights and samples; default: 0")
    options = parser.parse_args(arguments)
    if options.samples < 1:
        parser.error("--samples is at least 1")
    options.inputs = options.inputs or [Input("3x224x224")]
    return options


def run_export(options):
    """Writes the files that the options ask for, and says what they are."""
    model = make_model(options)
    inputs = Inputs(model, options.inputs, options.seed)
    exported = export(model, inputs, options.how)
    targets = sample_targets(model, inputs, options) if options.targets_file else None
    exported.module.save(options.output)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{options.output}: {options.model}, {num_parameters:,} parameters, "
        f"{'compiled' if exported.how == 'script' else 'traced'}; inputs: {', '.join(inputs.names)}"
    )
    for remark in exported.remarks:
        print(f"note: {remark}")
    if options.inputs_file:
        write_safetensors(options.inputs_file, dict(zip(inputs.names, inputs.tensors(options.samples))))
        print(f"{options.inputs_file}: {options.samples} random samples")
    if options.targets_file:
        write_safetensors(options.targets_file, {"target": targets})
        print(f"{options.targets_file}: random targets for --loss {options.loss}")


def main(arguments=None):
    try:
        run_export(parse_arguments(arguments))
    except ExportError as error:
        sys.exit(f"export_model: {error}")
    except OSError as error:
        sys.exit(f"export_model: {error}; is the path right, and is there a network where names are downloaded?")


if __name__ == "__main__":
    main()
