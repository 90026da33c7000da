// How a program may use the library and, with GPIPE_MISUSES, how it may not: then each line that is marked gives one
// message, which run.cmake looks for. Compiled by the tests, but never run.
#include <gpipe/gpipe.h>

namespace {

// A module of the program's own that is no chain.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) { return linear(input); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Net);

torch::Tensor plain_function(const torch::Tensor& output, const torch::Tensor& target) {
  return (output - target).sum();
}

}  // namespace

void right_uses() {
  gpipe::LayerChain chain;
  chain.add<torch::nn::Linear>("in", 4, 4).add<Net>("net");
  chain.add("relu", torch::nn::ReLU());
  chain.add("net2", std::make_shared<NetImpl>());
  chain.add<torch::nn::Dropout>("dropout", 0.1);

  gpipe::Pipeline pipeline(chain, 2);
  gpipe::Pipeline of_sequential(torch::nn::Sequential(torch::nn::Linear(4, 4), Net()), gpipe::PipelineOptions(2));
  torch::nn::Sequential outer(torch::nn::Linear(4, 4), pipeline);

  const torch::Tensor input = torch::ones({4, 4});
  const torch::Tensor target = torch::ones({4, 4});
  pipeline(input);
  pipeline->forward(input);
  pipeline->forward_tensors({input});
  pipeline->train_step(input, target, torch::nn::MSELoss());
  pipeline->train_step(input, target, plain_function);
  pipeline->train_step(input, target, [](const auto& output, const auto& wanted) { return (output - wanted).sum(); });
  pipeline->train_step(input, target, [](const torch::Tensor& output, const torch::Tensor& wanted) {
    return gpipe::LossValue((output - wanted).square().sum(), wanted.numel());
  });
  pipeline->train_step({input}, {target}, [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return gpipe::LossValue(outputs[0].sum(), targets[0].sum(), {{"a", outputs[0]}, {"b", targets[0]}});
  });
  const gpipe::Tensors inputs = {input};
  pipeline->train_step(inputs, gpipe::Tensors{target}, [](const gpipe::Tensors& outputs, const gpipe::Tensors&) {
    return gpipe::LossValue(outputs[0].sum(), {{"a", outputs[0]}});
  });
  pipeline->train_step(inputs, inputs, [](const gpipe::Tensors& outputs, const gpipe::Tensors&) {
    return gpipe::LossValue(outputs[0].sum(), {});
  });
  pipeline->train_step(inputs, inputs, [](const gpipe::Tensors& outputs, auto) { return outputs[0].sum(); });

  gpipe::StageOptimizers<torch::optim::AdamW> optimizer(pipeline, torch::optim::AdamWOptions(1e-3));
  gpipe::StageOptimizers<torch::optim::SGD> of_rate(pipeline, 0.1);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/2);
  gpipe::save_checkpoint("run", pipeline, optimizer, {});
}

#ifdef GPIPE_MISUSES
void misuses() {
  gpipe::LayerChain chain;
  chain.add<NetImpl>("net");                                    // wants a module holder
  chain.add<torch::nn::Linear>("a", torch::nn::ReLU());         // no constructor that takes these arguments
  chain.add("b", torch::nn::LinearOptions(4, 4));               // takes a module holder
  chain.add("c", std::make_shared<torch::nn::Module>());        // needs a forward
  gpipe::Pipeline of_module(Net(), gpipe::PipelineOptions(2));  // is made of a torch::nn::Sequential

  gpipe::Pipeline pipeline(chain, 2);
  const torch::Tensor input = torch::ones({4, 4});
  const gpipe::Tensors inputs = {input};
  pipeline->train_step(input, input, [](const torch::Tensor& output) { return output.sum(); });
  pipeline->train_step(input, 3, torch::nn::MSELoss());
  pipeline->train_step(3, input, torch::nn::MSELoss());
  pipeline->train_step(input, inputs, torch::nn::MSELoss());
  pipeline->train_step(inputs, inputs, [](const gpipe::Tensors& outputs) { return outputs[0].sum(); });
  pipeline->train_step(input, input, [](const torch::Tensor& output, const torch::Tensor&) { return output.item(); });
  gpipe::StageOptimizers<torch::optim::LBFGS> lbfgs(pipeline, torch::optim::LBFGSOptions(1));
}
#endif
