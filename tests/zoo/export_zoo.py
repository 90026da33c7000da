#!/usr/bin/env python3
"""Exports the networks of the zoo, for the program zoo_check: a small member of each family of torchvision's models,
networks of other libraries if they are installed, and some of our own, with random weights and random samples.

    tests/zoo/export_zoo.py FOLDER [--only NAME,...] [--small] [--benchmark]

For each network NAME: NAME.pt, NAME.inputs.safetensors and NAME.targets.safetensors. The metadata of the inputs say in
which order forward takes them, and how the network was exported. FOLDER/models.txt lists the names.
"""
import argparse
import pathlib
import sys

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "examples"))
import export_model  # noqa: E402
import own_models  # noqa: E402

NUM_SAMPLES = 16
IMAGE = ["3x64x64"]
# Those of the test that every run of the tests has: seconds.
SMALL = ["small_resnet", "small_googlenet", "vit", "encoder"]


class Network:
    """`make` gives the module; `inputs` are those of examples/export_model.py."""

    def __init__(self, name, title, make, inputs, loss="cross-entropy", how="auto"):
        self.name = name
        self.title = title
        self.make = make
        self.inputs = inputs
        self.loss = loss
        self.how = how


def with_head(model):
    """torchvision's vision Transformer begins with a head of zeros: all gradients below it would be 0."""
    nn.init.normal_(model.heads.head.weight, std=0.1)
    return model


def with_narrow_classifier(model, width=256):
    """AlexNet and VGG have 90 % of their weights in two linear layers, which only cost time here."""
    linears = [index for index, module in enumerate(model.classifier) if isinstance(module, nn.Linear)]
    sizes = [model.classifier[linears[0]].in_features, width, width, model.classifier[linears[-1]].out_features]
    for index, (num_inputs, num_outputs) in zip(linears, zip(sizes, sizes[1:])):
        model.classifier[index] = nn.Linear(num_inputs, num_outputs)
    return model


def torchvision_networks():
    from torchvision import models

    def network(name, function, inputs=None, change=lambda model: model, how="auto", **settings):
        title = "torchvision " + function.__name__
        return Network(name, title, lambda: change(function(num_classes=10, **settings)), inputs or IMAGE, how=how)

    def small_vit(num_classes):
        return models.VisionTransformer(
            image_size=32,
            patch_size=8,
            num_layers=6,
            num_heads=4,
            hidden_dim=64,
            mlp_dim=128,
            dropout=0.1,
            num_classes=num_classes,
        )

    def small_maxvit(num_classes):
        return models.MaxVit(
            input_size=(64, 64),
            stem_channels=16,
            partition_size=4,
            block_channels=[16, 32],
            block_layers=[2, 2],
            head_dim=8,
            stochastic_depth_prob=0.1,
            num_classes=num_classes,
        )

    small_vit.__name__ = "VisionTransformer (6 layers, width 64)"
    small_maxvit.__name__ = "MaxVit (4 blocks)"
    return [
        network("alexnet", models.alexnet, change=with_narrow_classifier),
        network("vgg", models.vgg11_bn, ["3x32x32"], change=with_narrow_classifier),
        network("resnet", models.resnet18),
        network("resnet_traced", models.resnet18, how="trace"),
        network("resnext", models.resnext50_32x4d),
        network("wide_resnet", models.wide_resnet50_2, ["3x32x32"]),
        network("densenet", models.densenet121),
        network("densenet_traced", models.densenet121, how="trace"),
        network("googlenet", models.googlenet, init_weights=False),
        network("inception", models.inception_v3, ["3x299x299"], init_weights=False),
        network("squeezenet", models.squeezenet1_1),
        network("shufflenet", models.shufflenet_v2_x0_5),
        network("mobilenet_v2", models.mobilenet_v2),
        network("mobilenet_v3", models.mobilenet_v3_small),
        network("mnasnet", models.mnasnet0_5),
        network("efficientnet", models.efficientnet_b0),
        network("regnet", models.regnet_y_400mf),
        network("convnext", models.convnext_tiny, ["3x32x32"]),
        network("vit", small_vit, ["3x32x32"], change=with_head),
        network("vit_traced", small_vit, ["3x32x32"], change=with_head, how="trace"),
        network("swin", models.swin_t),
        network("swin_v2", models.swin_v2_t),
        network("maxvit", small_maxvit),
    ]


def own_networks():
    def network(name, make, inputs, title, loss="cross-entropy", how="auto"):
        return Network(name, title, make, inputs, loss, how)

    return [
        network("encoder", own_models.Encoder, ["12:below=50"], "nn.TransformerEncoder, 3 layers"),
        network("encoder_traced", own_models.Encoder, ["12:below=50"], "nn.TransformerEncoder, 3 layers", how="trace"),
        network(
            "masked_encoder",
            own_models.MaskedEncoder,
            ["12:below=50", "12:below=10"],
            "nn.TransformerEncoder with two masks",
        ),
        network("tagger", own_models.Tagger, ["12:below=50"], "LSTM tagger, both directions"),
        network("unet", own_models.UNet, ["3x32x32"], "U-Net, 3 skips", loss="mse"),
        network("control_flow", own_models.ControlFlow, ["16"], "control flow by data"),
        network("shared", own_models.SharedModules, ["12:below=40"], "shared modules, tied embedding"),
        network("shared_often", own_models.SharedOften, ["16"], "one layer nine times, in a loop"),
        network("shared_often_traced", own_models.SharedOften, ["16"], "one layer nine times", how="trace"),
        network(
            "structured",
            own_models.Structured,
            ["pair.0=16", "pair.1=16", "features.gate=16", "features.scale=1"],
            "tuple and dictionary",
        ),
        network("in_place", own_models.InPlace, ["16"], "writes in place, no_grad"),
    ]


def timm_networks():
    import timm

    def network(name, inputs=None, title=None, how="auto", **settings):
        def make():
            torch.manual_seed(0)
            return timm.create_model(name, num_classes=10, scriptable=how != "trace", **settings)

        return Network("timm_" + name, "timm " + name, make, inputs or IMAGE, how=how)

    return [
        network("mixer_s32_224", img_size=64),
        network("mobilevit_xxs"),
        network("levit_128s", ["3x224x224"]),
        network("resmlp_12_224", img_size=64),
        network("poolformer_s12"),
        network("ghostnet_100"),
        network("res2net50_26w_4s"),
        network("hrnet_w18_small"),
        network("dla34"),
        network("eca_nfnet_l0"),
        network("convmixer_768_32", ["3x32x32"]),
        network("xcit_nano_12_p16_224"),
        network("convnext_atto"),
        network("deit_tiny_patch16_224", img_size=64),
    ]


def transformers_networks():
    import transformers

    def network(name, head, inputs, loss="cross-entropy", **settings):
        def make():
            return export_model.from_transformers(name, dict(settings), head, is_random=True)

        return Network("hf_" + name.replace("-", "_"), f"transformers {name}, {head}", make, inputs, loss)

    tokens = ["input_ids=16:below=100", "attention_mask=16:below=2"]
    image = ["pixel_values=3x32x32"]
    small = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    transformers.logging.set_verbosity_error()
    return [
        network("bert", "sequence-classification", tokens, num_labels=10, **small),
        network("roberta", "masked-lm", tokens, **small),
        network(
            "distilbert",
            "sequence-classification",
            tokens,
            num_labels=10,
            vocab_size=100,
            dim=32,
            n_layers=4,
            n_heads=4,
            hidden_dim=64,
        ),
        network("albert", "sequence-classification", tokens, num_labels=10, embedding_size=16, **small),
        network("gpt2", "causal-lm", tokens[:1], vocab_size=100, n_embd=32, n_layer=4, n_head=4),
        network(
            "opt",
            "causal-lm",
            tokens,
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            ffn_dim=64,
            word_embed_proj_dim=32,
        ),
        network("llama", "causal-lm", tokens, **small),
        network(
            "t5",
            "seq2seq-lm",
            ["input_ids=16:below=100", "decoder_input_ids=12:below=100"],
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=3,
            num_heads=4,
            decoder_start_token_id=0,
        ),
        network(
            "vit",
            "image-classification",
            image,
            num_labels=10,
            image_size=32,
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
        ),
    ]


def small_networks():
    """Images of 32 x 32, where the zoo has larger ones."""
    from torchvision import models

    def googlenet():
        return models.googlenet(num_classes=10, init_weights=False)

    return [
        Network("small_resnet", "torchvision resnet18", lambda: models.resnet18(num_classes=10), ["3x32x32"]),
        Network("small_googlenet", "torchvision googlenet", googlenet, ["3x32x32"]),
    ]


def benchmark_networks():
    """Those of torchscript_benchmark: large enough that a step takes some tenths of a second."""
    from torchvision import models

    def resnet18():
        return models.resnet18(num_classes=10)

    def resnet50():
        return models.resnet50(num_classes=10)

    def vit():
        return with_head(models.vit_b_16(image_size=64, num_classes=10))

    def encoder():
        return own_models.Encoder(vocabulary=1000, width=256, num_layers=6)

    return [
        Network("bench_resnet18", "torchvision resnet18, 64 x 64", resnet18, IMAGE),
        Network("bench_encoder", "nn.TransformerEncoder, 6 layers, width 256", encoder, ["64:below=1000"]),
        Network("bench_resnet50", "torchvision resnet50, 64 x 64", resnet50, IMAGE),
        Network("bench_vit", "torchvision vit_b_16, 64 x 64", vit, IMAGE),
    ]


def all_networks():
    """All networks that can be made here, and what was left out."""
    networks, missing = [], []
    for gather in (torchvision_networks, own_networks, timm_networks, transformers_networks):
        try:
            networks += gather()
        except ImportError as error:
            missing.append(str(error))
    return networks, missing


def export(network, folder):
    torch.manual_seed(0)
    model = network.make().train()
    inputs = export_model.Inputs(model, [export_model.Input(text) for text in network.inputs])
    exported = export_model.export(model, inputs, network.how)
    path = folder / network.name
    exported.module.save(f"{path}.pt")
    metadata = {
        "title": network.title,
        "inputs": ",".join(inputs.names),
        "loss": network.loss,
        "exported": exported.how,
    }
    metadata["remarks"] = "; ".join(exported.remarks)
    export_model.write_safetensors(
        f"{path}.inputs.safetensors", dict(zip(inputs.names, inputs.tensors(NUM_SAMPLES))), metadata
    )
    output = export_model.run(model, inputs.arguments(export_model.EXAMPLE_ROWS), 0)[0]
    shape = output.new_empty([NUM_SAMPLES, *output.shape[1:]])
    export_model.write_safetensors(
        f"{path}.targets.safetensors", {"target": export_model.targets_for(shape, network.loss, 0)}
    )
    print(f"{network.name}: {'compiled' if exported.how == 'script' else 'traced'}", flush=True)
    for remark in exported.remarks:
        print(f"  {remark}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", metavar="NAME,...", help="these networks alone")
    parser.add_argument("--benchmark", action="store_true", help="those of torchscript_benchmark instead")
    parser.add_argument("--small", action="store_true", help="those of the test alone: " + ", ".join(SMALL))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    networks, missing = (benchmark_networks(), []) if options.benchmark else all_networks()
    if options.small:
        networks += small_networks()
    wanted = (
        SMALL if options.small else options.only.split(",") if options.only else [network.name for network in networks]
    )
    unknown = set(wanted) - {network.name for network in networks}
    if unknown:
        sys.exit(
            f"export_zoo: there is no {', '.join(sorted(unknown))} here; there are "
            f"{', '.join(network.name for network in networks)}"
        )
    for why in missing:
        print(f"left out: {why}")
    names, failed = [], []
    for network in networks:
        if network.name not in wanted:
            continue
        try:
            export(network, options.folder)
            names.append(network.name)
        except Exception as error:  # whatever a library throws: the others are exported
            failed.append(network.name)
            print(f"{network.name}: CANNOT BE EXPORTED: {export_model.one_line(error)}", flush=True)
    (options.folder / "models.txt").write_text("".join(name + "\n" for name in names))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
