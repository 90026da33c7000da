// Replicas x stages: what replicas of a pipeline do together, against plain libtorch. The ranks are threads with
// connections of their own, which saves the start of processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/all_ranks.h"
#include "gpipe/execute/group/replicas.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/replica_share.h"
#include "gpipe/schedule/registry.h"
#include "tests/execute/training.h"
#include "tests/model/parts.h"
#include "tests/model/same_bits.h"
#include "tests/os/reserved_port.h"
#include "tests/transport/ranks.h"

namespace gpipe::test {
namespace {

using ::testing::HasSubstr;

using Work = std::function<void(const std::shared_ptr<Peers>& peers)>;

std::vector<std::exception_ptr> try_replicas(int num_replicas, int num_stages, const Work& work) {
  const ReservedPort port;
  const int size = num_replicas * num_stages;
  return run_each(size, [&](int rank) {
    World world = world_of(rank, size, port.number());
    world.num_replicas = num_replicas;
    work(std::make_shared<Peers>(world));
  });
}

void run_replicas(int num_replicas, int num_stages, const Work& work) {
  for (const std::exception_ptr& error : try_replicas(num_replicas, num_stages, work)) EXPECT_EQ(text_of(error), "");
}

LayerChain small_chain() {
  LayerChain chain;
  chain.add<torch::nn::Linear>("first", 3, 4);
  chain.add<torch::nn::Tanh>("tanh");
  chain.add<torch::nn::Linear>("last", 4, 2);
  return chain;
}

PipelineOptions small_options(const std::shared_ptr<Peers>& peers) {
  return PipelineOptions(2).num_micro_batches(2).balance({1, 2}).seed(5).peers(peers);
}

at::Tensor small_input() { return torch::arange(21, torch::kFloat).view({7, 3}) / 21; }
at::Tensor small_target() { return torch::arange(14, torch::kFloat).view({7, 2}) / 14; }

at::Tensor squares(const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); }

// Of the whole batch, by name; of a mean over its rows.
std::map<std::string, at::Tensor> plain_grads() {
  PlainChain plain(small_chain(), PipelineOptions(1).num_micro_batches(1).seed(5));
  plain.train_step({small_input()}, {small_target()}, [](const Tensors& outputs, const Tensors& targets) {
    return LossValue(squares(outputs.front(), targets.front()));
  });
  std::map<std::string, at::Tensor> grads;
  for (const auto& parameter : plain.model().named_parameters()) grads[parameter.key()] = parameter.value().grad();
  return grads;
}

void expect_grads(const Pipeline& pipeline, const std::map<std::string, at::Tensor>& expected, double factor = 1) {
  for (const auto& parameter : pipeline->named_parameters()) {
    const at::Tensor& grad = parameter.value().grad();
    ASSERT_TRUE(grad.defined()) << parameter.key();
    EXPECT_TRUE(torch::allclose(grad, factor * expected.at(parameter.key()), 1e-5, 1e-7)) << parameter.key();
  }
}

struct Shape {
  int num_replicas;
  int num_stages;
  const char* schedule;
  Recompute recompute;
};

class ReplicaBitwiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // as the stages have
};

// The number of stages, the schedule and the recompute mode change nothing; parameters, buffers and losses are the same
// on all.
TEST_P(ReplicaBitwiseTest, ReplicasTrainAsThePlainModelDoes) {
  const std::int64_t num_samples = 11;  // shares of 6 and 5, and of 4, 4 and 3
  for (const Shape& shape :
       {Shape{2, 1, "gpipe", Recompute::kNever}, Shape{2, 2, "1f1b", Recompute::kAlways},
        Shape{2, 2, "interleaved", Recompute::kNever}, Shape{3, 2, "gpipe", Recompute::kExceptLast},
        Shape{2, 2, "hanayo", Recompute::kExceptLast}, Shape{2, 2, "zb-h1", Recompute::kNever},
        Shape{2, 2, "zb-h2", Recompute::kAlways}, Shape{2, 2, "zb-v", Recompute::kAlways},
        Shape{2, 2, "v-half", Recompute::kNever}}) {
    const TestModel plain = make_model(GetParam());
    const Trained expected = train_plainly(plain, num_samples, 2, shape.num_replicas);
    std::vector<TestModel> models;
    for (int rank = 0; rank < shape.num_replicas * shape.num_stages; ++rank) models.push_back(make_model(GetParam()));
    run_replicas(shape.num_replicas, shape.num_stages, [&](const std::shared_ptr<Peers>& peers) {
      TestModel& model = models[peers->world().rank];
      const std::int64_t rows = replica_share(model.input.narrow(0, 0, num_samples), peers->world()).size(0);
      model.input = replica_share(model.input.narrow(0, 0, num_samples), peers->world());
      model.target = replica_share(model.target.narrow(0, 0, num_samples), peers->world());
      const int num_parts = shape.num_stages * find_schedule(shape.schedule).default_chunks;
      PipelineOptions options(shape.num_stages);
      options.num_micro_batches(2).schedule(shape.schedule).recompute(shape.recompute).peers(peers);
      options.balance(even_balance(model.chain.size(), num_parts));
      const Trained got = train_pipelined(model, rows, options);
      EXPECT_GT(got.tensors.size(), static_cast<std::size_t>(kNumSteps));
      for (const auto& [name, tensor] : got.tensors) {
        ASSERT_TRUE(expected.tensors.count(name)) << name;
        EXPECT_TRUE(same_bits(tensor, expected.tensors.at(name)))
            << name << ", " << shape.num_replicas << " x " << shape.num_stages << ", " << shape.schedule;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReplicaBitwiseTest, ::testing::Values("mlp", "cnn", "transformer", "unet", "padded"),
                         [](const auto& test) { return test.param; });

// Each replica has running statistics of its own, as ever with plain batch norm.
TEST(Replicas, OfPartsOfOneModuleTrainAsThePlainModelDoes) {
  at::set_num_threads(1);
  const auto make = [] {
    torch::manual_seed(2);
    return TestModel{
        "parts", chain_of_parts(), torch::randn({16, 5}), torch::randn({16, 5}),
        [](const at::Tensor& output, const at::Tensor& target) { return LossValue(at::mse_loss(output, target)); }};
  };
  const Trained expected = train_plainly(make(), 11, 2, 2);
  std::vector<TestModel> models;
  for (int rank = 0; rank < 4; ++rank) models.push_back(make());
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    TestModel& model = models[peers->world().rank];
    model.input = replica_share(model.input.narrow(0, 0, 11), peers->world());
    model.target = replica_share(model.target.narrow(0, 0, 11), peers->world());
    const Trained got = train_pipelined(model, model.input.size(0),
                                        PipelineOptions(2).num_micro_batches(2).balance({2, 3}).peers(peers));
    for (const auto& [name, tensor] : got.tensors) {
      if (name.find("running_") != std::string::npos) continue;
      EXPECT_TRUE(same_bits(tensor, expected.tensors.at(name))) << name;
    }
  });
}

TEST(Replicas, GradientsAreAddedToThoseThatAreThere) {
  const auto expected = plain_grads();
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    for (int count = 1; count <= 3; ++count) {
      pipeline->train_step(replica_share(small_input(), peers->world()), replica_share(small_target(), peers->world()),
                           squares);
      expect_grads(pipeline, expected, count);
    }
  });
}

TEST(Replicas, LossAndMetricsAreOverAllSamples) {
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    const at::Tensor error = outputs[0] - targets[0];
    return LossValue(error.square().mean(), {{"error", error.detach()}, {"mean", error.detach().mean()}});
  };
  // As many micro-batches, of the same samples.
  Pipeline whole(small_chain(), PipelineOptions(1).num_micro_batches(4).seed(5).peers(no_peers()));
  const StepResult expected = whole->train_step({small_input()}, {small_target()}, loss);
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    const StepResult got = pipeline->train_step(replica_share(Tensors{small_input()}, peers->world()),
                                                replica_share(Tensors{small_target()}, peers->world()), loss);
    EXPECT_TRUE(same_bits(got.loss, expected.loss));
    EXPECT_TRUE(same_bits(got.metrics.at("error"), expected.metrics.at("error")));
    EXPECT_TRUE(same_bits(got.metrics.at("mean"), expected.metrics.at("mean")));
    EXPECT_EQ(got.timeline.num_workers(), 2);  // of one replica
    EXPECT_EQ(got.timeline.workers[0].spans.size(), 4U);
  });
}

TEST(Replicas, AutogradAddsUpWhatTheReplicasGive) {
  const auto expected = plain_grads();
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    const at::Tensor target = replica_share(small_target(), peers->world());
    const at::Tensor output = pipeline->forward(replica_share(small_input(), peers->world()));
    EXPECT_EQ(output.size(0), target.size(0));
    (squares(output, target) * (static_cast<double>(target.size(0)) / 7)).backward();
    expect_grads(pipeline, expected);
  });
}

// The gradient that leaves the second one enters the first as it is.
TEST(Replicas, PipelinesCanBeChained) {
  const auto expected = plain_grads();
  run_replicas(2, 1, [&](const std::shared_ptr<Peers>& peers) {
    const auto options = [&] { return PipelineOptions(1).num_micro_batches(2).seed(5).peers(peers); };
    LayerChain front;
    front.add<torch::nn::Linear>("first", 3, 4);
    Pipeline first(front, options());
    LayerChain back;
    back.add<torch::nn::Tanh>("tanh");
    back.add<torch::nn::Linear>("last", 4, 2);
    Pipeline second(back, options());
    const Pipeline whole(small_chain(), PipelineOptions(1).seed(5).peers(no_peers()));
    const at::NoGradGuard no_grad;
    for (const auto& weight : whole->named_parameters()) {
      Pipeline& owner = weight.key().rfind("first", 0) == 0 ? first : second;
      owner->named_parameters()[weight.key()].copy_(weight.value());
    }
    const at::AutoGradMode grad_mode(true);
    const at::Tensor output = first->forward(replica_share(small_input(), peers->world()));
    second->train_step(output, replica_share(small_target(), peers->world()), squares);
    expect_grads(first, expected);
    expect_grads(second, expected);
  });
}

TEST(Replicas, DifferentModelsAndFrozenParametersAreRefused) {
  auto errors = try_replicas(2, 1, [&](const std::shared_ptr<Peers>& peers) {
    LayerChain chain;
    chain.add<torch::nn::Linear>("layer", 3, peers->world().rank == 0 ? 2 : 4);
    Pipeline pipeline(chain, PipelineOptions(1).balance({1}).peers(peers));
  });
  for (const std::exception_ptr& error : errors) EXPECT_THAT(text_of(error), HasSubstr("\"layer.weight\""));
  errors = try_replicas(2, 1, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), PipelineOptions(1).num_micro_batches(2).peers(peers));
    for (int step = 0; step < 2; ++step) {
      pipeline->train_step(replica_share(small_input(), peers->world()), replica_share(small_target(), peers->world()),
                           squares);
      if (peers->world().rank == 1) pipeline->named_parameters()["first.weight"].requires_grad_(false);
    }
  });
  for (const std::exception_ptr& error : errors) EXPECT_THAT(text_of(error), HasSubstr("freeze the same"));
}

TEST(Replicas, StartWithTheWeightsOfTheFirst) {
  std::vector<torch::nn::Sequential> models;
  for (int rank = 0; rank < 4; ++rank) {
    models.emplace_back(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
    models.back()->buffers().front().fill_(rank);
  }
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    const int rank = peers->world().rank;
    Pipeline pipeline(models[rank], PipelineOptions(2).num_micro_batches(1).balance({2, 1}).peers(peers));
    const auto expected = models[peers->world().stage()]->named_parameters();
    for (const auto& parameter : pipeline->named_parameters()) {
      EXPECT_TRUE(same_bits(parameter.value(), expected[parameter.key()])) << rank << " " << parameter.key();
    }
    if (peers->world().stage() == 0) {
      EXPECT_EQ(pipeline->buffers().front()[0].item<float>(), 0) << rank;
    }
  });
}

// Uses its second weight only for inputs that are large.
struct ChoosyImpl : torch::nn::Module {
  ChoosyImpl() {
    always = register_parameter("always", torch::ones({3}));
    sometimes = register_parameter("sometimes", torch::ones({3}));
    never = register_parameter("never", torch::ones({3}));
  }
  at::Tensor forward(const at::Tensor& input) const {
    const at::Tensor output = input * always;
    return input.max().item<float>() > 0.6 ? output * sometimes : output;
  }
  at::Tensor always;
  at::Tensor sometimes;
  at::Tensor never;
};
TORCH_MODULE(Choosy);

TEST(Replicas, AWeightThatOnlyOneOfThemUsesHasAGradientOnAll) {
  run_replicas(2, 1, [&](const std::shared_ptr<Peers>& peers) {
    LayerChain chain;
    chain.add<Choosy>("choosy");
    Pipeline pipeline(chain, PipelineOptions(1).num_micro_batches(2).peers(peers));
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) { return output.mean() + target.mean(); };
    for (int step = 1; step <= 3; ++step) {
      pipeline->train_step(replica_share(small_input(), peers->world()), replica_share(small_target(), peers->world()),
                           loss);
      const auto parameters = pipeline->named_parameters();
      const at::Tensor sum = small_input().sum(0) / (7 * 3);
      const at::Tensor large = small_input().narrow(0, 4, 3).sum(0) / (7 * 3);
      EXPECT_TRUE(torch::allclose(parameters["choosy.always"].grad(), step * sum));
      EXPECT_TRUE(torch::allclose(parameters["choosy.sometimes"].grad(), step * large));
      EXPECT_FALSE(parameters["choosy.never"].grad().defined());
    }
  });
}

TEST(Replicas, ALossThatIsNotFiniteOnOneOfThemIsRefusedByAll) {
  const auto expected = plain_grads();
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers).check_loss(true));
    const at::Tensor input = replica_share(small_input(), peers->world());
    const at::Tensor target = replica_share(small_target(), peers->world());
    pipeline->train_step(input, target, squares);
    at::Tensor bad = target.clone();
    if (peers->world().replica() == 1) bad[1][0] = std::numeric_limits<float>::quiet_NaN();
    try {
      pipeline->train_step(input, bad, squares);
      ADD_FAILURE() << "it was taken";
    } catch (const NonFiniteLossError& error) {
      EXPECT_THAT(error.what(), HasSubstr("(samples 4 to 5) is nan"));
    }
    expect_grads(pipeline, expected);
    EXPECT_EQ(pipeline->step(), 1);
    pipeline->train_step(input, target, squares);
    expect_grads(pipeline, expected, 2);
  });
}

TEST(Replicas, TheNormIsOfOneAndSoAreTheWeights) {
  const auto expected = plain_grads();
  double norm = 0;
  for (const auto& [name, grad] : expected) norm += grad.square().sum().item<double>();
  run_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    pipeline->train_step(replica_share(small_input(), peers->world()), replica_share(small_target(), peers->world()),
                         squares);
    EXPECT_NEAR(clip_grad_norm_(pipeline, 1e-3), std::sqrt(norm), 1e-5);
    const NamedTensors weights = gather_weights(pipeline);
    ASSERT_EQ(weights.size(), peers->world().rank == 0 ? 4U : 0U);
    if (peers->world().rank == 0) {
      EXPECT_EQ(weights[2].first, "last.weight");
    }
    EXPECT_TRUE(any_rank(pipeline, peers->world().rank == 3));
  });
}

struct FailingImpl : torch::nn::Module {
  explicit FailingImpl(bool fails_in) : fails(fails_in) {}
  at::Tensor forward(const at::Tensor& input) {
    if (fails && ++num_calls > 3) throw std::runtime_error("out of luck");
    return input * 1;
  }
  bool fails;
  int num_calls = 0;
};
TORCH_MODULE(Failing);

TEST(Replicas, AnErrorOfOneOfThemReachesAll) {
  const auto errors = try_replicas(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    LayerChain chain = small_chain();
    chain.add<Failing>("failing", peers->world().rank == 3);
    Pipeline pipeline(chain, small_options(peers).balance({2, 2}));
    for (int step = 0; step < 10; ++step) {
      pipeline->train_step(replica_share(small_input(), peers->world()), replica_share(small_target(), peers->world()),
                           squares);
    }
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(text_of(errors[rank]), HasSubstr("out of luck")) << rank;
    if (rank < 3) {
      EXPECT_THAT(text_of(errors[rank]), HasSubstr("rank 3")) << rank;
    }
  }
}

// As data::Batches does.
TEST(Replicas, TheFirstOnesHaveTheRowThatIsLeftOver) {
  World world;
  world.size = 2;
  world.num_replicas = 2;
  EXPECT_TRUE(same_bits(replica_share(small_input(), world), small_input().narrow(0, 0, 4)));
  world.rank = 1;
  EXPECT_TRUE(same_bits(replica_share(small_input(), world), small_input().narrow(0, 4, 3)));
}

TEST(Replicas, OtherNumbersOfStagesAndRowsAreRefusedWithARemedy) {
  const auto errors = try_replicas(
      2, 1, [&](const std::shared_ptr<Peers>& peers) { Pipeline pipeline(small_chain(), small_options(peers)); });
  EXPECT_THAT(text_of(errors[0]), HasSubstr("gpipe launch -n 4 --replicas 2"));
  World world;
  world.size = 8;
  world.num_replicas = 8;
  EXPECT_THROW(replica_share(small_input(), world), InvalidArgument);
  EXPECT_FALSE(replica_share(at::Tensor(), world).defined());
}

}  // namespace
}  // namespace gpipe::test
