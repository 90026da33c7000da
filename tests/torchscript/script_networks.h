// Networks of many kinds, as TorchScript: what a chain that is cut from them has to train to the same bytes.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "gpipe/torchscript/from_torchscript.h"
#include "tests/torchscript/script_modules.h"

namespace gpipe::test {

// A network of one kind: how to make it, what it takes, and how that comes to a chain.
struct Network {
  torch::jit::Module module;
  std::vector<c10::IValue> arguments;
  Tensors tensors;  // the same, as a mini-batch has them
  TorchScriptOptions options;
};

inline Network convolutions() {
  Network network{script_module(), {}, {torch::randn({4, 3, 6, 6})}, {}};
  network.module.register_module("conv1", script_conv(3, 4));
  network.module.register_module("norm1", script_batch_norm(4));
  network.module.register_module("conv2", script_conv(4, 4));
  network.module.register_module("norm2", script_batch_norm(4));
  network.module.register_module("head", script_linear(4, 5));
  network.module.define(R"(
def forward(self, x):
  x = torch.relu_(self.norm1.forward(self.conv1.forward(x)))
  y = self.norm2.forward(self.conv2.forward(x))
  y += x
  y = torch.relu_(y)
  y = torch.dropout(torch.mean(y, [2, 3]), 0.3, self.training)
  return self.head.forward(y)
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline Network control_flow() {
  Network network{script_module(), {}, {torch::randn({4, 6})}, {}};
  network.module.register_module("a", script_linear(6, 6));
  network.module.register_module("b", script_linear(6, 6));
  network.module.register_buffer("count", torch::zeros({1}));
  network.module.define(R"(
def forward(self, x):
  rows = x.size(0)
  outs = []
  x = self.a.forward(x)
  for i in range(3):
    x = torch.tanh(self.b.forward(x))
    outs.append(x)
  if self.training:
    x = torch.dropout(x, 0.4, True) * 2
    self.count.add_(1)
  else:
    x = x * 1.5
  if bool(x.sum() > 0):
    x = x + 1
  x = self.a.forward(x)
  outs.append(x)
  return torch.stack(outs).sum(0).view([rows, -1]) + x
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline Network shared_modules() {
  Network network{script_module(), {}, {torch::randn({4, 6})}, {}};
  network.module.register_module("a", script_linear(6, 6));
  network.module.register_module("b", script_linear(6, 6));
  network.module.define(R"(
def forward(self, x):
  x = torch.relu(self.a.forward(x))
  x = torch.tanh(self.b.forward(x))
  x = torch.relu(self.a.forward(x))
  x = torch.sigmoid(self.a.forward(x))
  return self.b.forward(x)
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline Network tuples_and_dictionaries() {
  const at::Tensor x = torch::randn({4, 6});
  const at::Tensor mask = torch::rand({4, 1}) > 0.5;
  const at::Tensor left = torch::randn({4, 6});
  const at::Tensor right = torch::randn({4, 6});
  Network network{script_module(), {}, {x, left, right, mask}, {}};
  network.options.inputs({"x", "pair.0", "pair.1", "features.mask"});
  network.module.register_module("a", script_linear(6, 6));
  network.module.register_module("b", script_linear(6, 6));
  network.module.define(R"(
def forward(self, x, pair: Tuple[Tensor, Tensor], features: Dict[str, Tensor], scale: float = 2.0):
  left, right = pair
  state = {"x": self.a.forward(x), "left": left * scale}
  state["right"] = self.b.forward(right)
  parts = [state["x"], state["left"]]
  parts.append(state["right"])
  y = torch.stack(parts).sum(0)
  y = torch.where(features["mask"], self.a.forward(y), y)
  return {"out": y, "both": torch.cat([self.b.forward(y), state["x"]], 1)}
)");
  c10::Dict<std::string, at::Tensor> features;
  features.insert("mask", mask);
  network.arguments = {x, c10::ivalue::Tuple::create({left, right}), features, 2.0};
  return network;
}

inline Network unet() {
  Network network{script_module(), {}, {torch::randn({2, 2, 8, 8})}, {}};
  for (const char* name : {"down1", "down2", "middle", "up2", "up1"}) {
    const bool is_up = std::string(name).substr(0, 2) == "up";
    network.module.register_module(name, script_conv(name == std::string("down1") ? 2 : is_up ? 8 : 4, 4));
  }
  network.module.register_module("head", script_conv(4, 2));
  network.module.define(R"(
def forward(self, x):
  a = torch.relu(self.down1.forward(x))
  b = torch.relu(self.down2.forward(torch.max_pool2d(a, [2, 2])))
  c = torch.relu(self.middle.forward(torch.max_pool2d(b, [2, 2])))
  c = torch.upsample_nearest2d(c, [b.size(2), b.size(3)])
  c = torch.relu(self.up2.forward(torch.cat([c, b], 1)))
  c = torch.upsample_nearest2d(c, [a.size(2), a.size(3)])
  c = torch.relu(self.up1.forward(torch.cat([c, a], 1)))
  return self.head.forward(c)
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline Network tagger() {
  Network network{script_module(), {}, {torch::randint(0, 20, {4, 5})}, {}};
  add_parameter(network.module, "embedding", torch::randn({20, 6}));
  const auto weight = [&](const char* name, std::vector<std::int64_t> sizes) {
    add_parameter(network.module, name, torch::randn(sizes) * 0.3);
  };
  weight("w_ih", {32, 6});
  weight("w_hh", {32, 8});
  weight("b_ih", {32});
  weight("b_hh", {32});
  network.module.register_module("head", script_linear(8, 7));
  network.module.define(R"(
def forward(self, tokens):
  x = torch.embedding(self.embedding, tokens)
  zeros = torch.zeros([1, x.size(0), 8])
  weights = [self.w_ih, self.w_hh, self.b_ih, self.b_hh]
  y, h, c = torch.lstm(x, [zeros, zeros], weights, True, 1, 0.0, self.training, False, True)
  y = torch.dropout(y, 0.2, self.training)
  return self.head.forward(y) + torch.mean(c)
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline Network in_place() {
  Network network{script_module(), {}, {torch::randn({4, 6})}, {}};
  network.module.register_module("a", script_linear(6, 6));
  network.module.register_module("b", script_linear(6, 6));
  network.module.define(R"(
def forward(self, x):
  y = self.a.forward(x)
  v = y.view([-1, 2, 3])
  w = torch.sigmoid(self.b.forward(x))
  y.add_(w)
  z = w * 3
  y[:, 0] = z[:, 1]
  z = z + torch.tanh(z)
  y.relu_()
  z = torch.tanh(self.b.forward(z + v.flatten(1)))
  return self.a.forward(z + y)
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline Network no_grad_block() {
  Network network{script_module(), {}, {torch::randn({4, 6})}, {}};
  network.module.register_module("a", script_linear(6, 6));
  network.module.register_module("b", script_linear(6, 6));
  network.module.define(R"(
def forward(self, x):
  y = self.a.forward(x)
  before = torch.is_grad_enabled()
  torch.set_grad_enabled(False)
  z = torch.tanh(self.b.forward(y)) * 2
  torch.set_grad_enabled(before)
  w = self.b.forward(torch.relu(y))
  return (w + z, y)
)");
  network.arguments = {network.tensors[0]};
  return network;
}

inline std::map<std::string, Network (*)()> networks() {
  return {{"convolutions", convolutions},
          {"control flow", control_flow},
          {"shared modules", shared_modules},
          {"tuples and dictionaries", tuples_and_dictionaries},
          {"u-net", unet},
          {"tagger", tagger},
          {"in place", in_place},
          {"no grad", no_grad_block}};
}

}  // namespace gpipe::test
