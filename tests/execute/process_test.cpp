// A pipeline whose stages are on several ranks: what each of them gives and gets, and what they have to agree on. Most
// ranks here are threads with connections of their own, which saves the start of processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <limits>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/all_ranks.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/schedule/generators.h"
#include "tests/execute/forked_child.h"
#include "tests/execute/rank_processes.h"
#include "tests/execute/training.h"
#include "tests/model/same_bits.h"
#include "tests/os/reserved_port.h"
#include "tests/transport/ranks.h"

namespace gpipe::test {
namespace {

using ::testing::HasSubstr;

// What each rank threw.
std::vector<std::exception_ptr> try_ranks(int size, const std::function<void(std::shared_ptr<Peers>)>& work) {
  const ReservedPort port;
  return run_each(size, [&](int rank) { work(std::make_shared<Peers>(world_of(rank, size, port.number()))); });
}

void run_on_ranks(int size, const std::function<void(std::shared_ptr<Peers>)>& work) {
  for (const std::exception_ptr& error : try_ranks(size, work)) EXPECT_EQ(text_of(error), "");
}

LayerChain small_chain() {
  LayerChain chain;
  chain.add<torch::nn::Linear>("first", 3, 4);
  chain.add<torch::nn::Tanh>("tanh");
  chain.add<torch::nn::Linear>("last", 4, 2);
  return chain;
}

PipelineOptions small_options(const std::shared_ptr<Peers>& peers) {
  return PipelineOptions(2).num_micro_batches(3).balance({1, 2}).seed(5).peers(peers);
}

at::Tensor small_input() { return torch::arange(21, torch::kFloat).view({7, 3}) / 21; }
at::Tensor small_target() { return torch::arange(14, torch::kFloat).view({7, 2}) / 14; }

// The same on threads.
Pipeline on_threads(PipelineOptions options) { return Pipeline(small_chain(), options.peers(no_peers())); }

TEST(Processes, OnlyTheFirstRankNeedsInputsAndOnlyTheLastOneTargets) {
  Pipeline expected = on_threads(small_options(nullptr));
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    const at::Tensor error = outputs[0] - targets[0];
    return LossValue((error * error).mean(), {{"error", error.detach()}, {"largest", error.detach().abs().max()}});
  };
  const StepResult step = expected->train_step({small_input()}, {small_target()}, loss);
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const int rank = peers->world().rank;
    Pipeline pipeline(small_chain(), small_options(peers));
    const StepResult got = pipeline->train_step(rank == 0 ? Tensors{small_input()} : Tensors{},
                                                rank == 1 ? Tensors{small_target()} : Tensors{at::Tensor()}, loss);
    EXPECT_TRUE(same_bits(got.loss, step.loss));
    ASSERT_EQ(got.metrics.size(), 2U);
    EXPECT_TRUE(same_bits(got.metrics.at("error"), step.metrics.at("error")));
    EXPECT_TRUE(same_bits(got.metrics.at("largest"), step.metrics.at("largest")));
    ASSERT_EQ(got.timeline.num_workers(), 2);
    for (int worker = 0; worker < 2; ++worker) {
      EXPECT_EQ(got.timeline.workers[worker].spans.size(), 6U);  // three forwards, three backwards
      EXPECT_GT(got.timeline.workers[worker].busy_seconds, 0);
    }
    // A stage's forward comes after that of the stage before it: the clocks are compared rightly.
    EXPECT_GE(got.timeline.workers[1].spans[0].start_seconds, got.timeline.workers[0].spans[0].end_seconds);
    for (const auto& parameter : pipeline->named_parameters()) {
      EXPECT_EQ(parameter.key().rfind("first.", 0) == 0, rank == 0) << parameter.key();
      EXPECT_TRUE(same_bits(parameter.value().grad(), expected->named_parameters()[parameter.key()].grad()));
    }
    EXPECT_EQ(pipeline->parameters().size(), 2U);
  });
}

TEST(Processes, PacketsMayCarryChecksums) {
  Pipeline expected = on_threads(small_options(nullptr));
  const StepResult step = expected->train_step(small_input(), small_target(), torch::nn::MSELoss());
  setenv("GPIPE_CHECKSUM", "1", 1);
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    EXPECT_TRUE(same_bits(pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss, step.loss));
  });
  unsetenv("GPIPE_CHECKSUM");
}

TEST(Processes, AutogradGoesThroughAllOfThem) {
  Pipeline expected = on_threads(small_options(nullptr));
  const at::Tensor scale = torch::full({}, 2.0, torch::requires_grad());
  at::Tensor expected_out = expected->forward(small_input() * scale);
  (expected_out * small_target()).sum().backward();
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    const at::Tensor own_scale = torch::full({}, 2.0, torch::requires_grad());
    at::Tensor out = pipeline->forward(small_input() * own_scale);
    EXPECT_TRUE(same_bits(out, expected_out));
    (out * small_target()).sum().backward();
    EXPECT_TRUE(same_bits(own_scale.grad(), scale.grad()));
    for (const auto& parameter : pipeline->named_parameters()) {
      EXPECT_TRUE(same_bits(parameter.value().grad(), expected->named_parameters()[parameter.key()].grad()))
          << parameter.key();
    }
    EXPECT_EQ(pipeline->last_timeline().workers[1 - peers->world().rank].spans.size(), 3U);
    // Again, with the input on the first rank only.
    out = pipeline->forward(peers->world().rank == 0 ? small_input() * own_scale : at::Tensor());
    (out * small_target()).sum().backward();
    EXPECT_TRUE(same_bits(own_scale.grad(), peers->world().rank == 0 ? 2 * scale.grad() : scale.grad()));
  });
}

TEST(Processes, TwoForwardsMayBeOnTheirWayAtATimeAndOneRankMayDropItsOutput) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    at::Tensor dropped_by_one = pipeline->forward(small_input());
    if (peers->world().rank == 1) dropped_by_one = at::Tensor();
    const at::Tensor one = pipeline->forward(small_input());
    const at::Tensor two = pipeline->forward(small_input() + 1);
    two.sum().backward();
    one.sum().backward();
    for (const at::Tensor& parameter : pipeline->parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(Processes, EvaluationGivesTheOutputsToAll) {
  Pipeline expected = on_threads(small_options(nullptr));
  expected->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor expected_out = expected->forward(small_input());
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const at::NoGradGuard no_grad_either;
    Pipeline pipeline(small_chain(), small_options(peers));
    pipeline->eval();
    const at::Tensor input = peers->world().rank == 0 ? small_input() : at::Tensor();
    EXPECT_TRUE(same_bits(pipeline->forward(input), expected_out));
    const c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(pipeline->forward(input), expected_out));
  });
}

TEST(Processes, TheNormOfAllGradientsIsTheSame) {
  const auto make = [](PipelineOptions options) {
    LayerChain chain;  // listed as a.x, a.y, b, unlike the layers
    chain.add<torch::nn::Linear>("a.x", 3, 5);
    chain.add<torch::nn::Linear>("b", 5, 5);
    chain.add<torch::nn::Linear>("a.y", 5, 2);
    return Pipeline(chain, options.balance({2, 1}));
  };
  for (const double norm_type : {2.0, 1.0, 0.0, std::numeric_limits<double>::infinity()}) {
    Pipeline expected = make(small_options(no_peers()));
    expected->train_step(small_input(), small_target(), torch::nn::MSELoss());
    std::map<std::string, at::Tensor> grads;
    for (const auto& parameter : expected->named_parameters())
      grads[parameter.key()] = parameter.value().grad().clone();
    const double norm = torch::nn::utils::clip_grad_norm_(expected->parameters(), 0.01, norm_type);
    Pipeline threads = make(small_options(no_peers()));
    threads->train_step(small_input(), small_target(), torch::nn::MSELoss());
    EXPECT_EQ(clip_grad_norm_(threads, 0.01, norm_type), norm);
    run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
      Pipeline pipeline = make(small_options(peers));
      pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss());
      EXPECT_EQ(clip_grad_norm_(pipeline, 0.01, norm_type), norm);
      for (const auto& parameter : pipeline->named_parameters()) {
        EXPECT_TRUE(same_bits(parameter.value().grad(), expected->named_parameters()[parameter.key()].grad()));
      }
    });
  }
}

TEST(Processes, TheFirstRankCanGatherTheWeightsOfAll) {
  const auto make = [](PipelineOptions options) {
    LayerChain chain;  // listed as a.x, a.y, norm, unlike the layers
    chain.add<torch::nn::Linear>("a.x", 3, 5);
    chain.add<nn::DeferredBatchNorm1d>("norm", torch::nn::BatchNormOptions(5));
    chain.add<torch::nn::Linear>("a.y", 5, 2);
    return Pipeline(chain, options.balance({2, 1}));
  };
  const NamedTensors expected = weights_of(*make(small_options(no_peers())));
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const Pipeline pipeline = make(small_options(peers));
    const NamedTensors got = gather_weights(pipeline);
    EXPECT_EQ(got.size(), peers->world().rank == 0 ? expected.size() : 0U);
    for (std::size_t index = 0; index < got.size(); ++index) {
      EXPECT_EQ(got[index].first, expected[index].first);
      EXPECT_TRUE(same_bits(got[index].second, expected[index].second));
    }
    EXPECT_TRUE(any_rank(pipeline, peers->world().rank == 1));
    EXPECT_FALSE(any_rank(pipeline, false));
  });
}

TEST(Processes, MemoryOfAllStagesIsReportedToAll) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers).measure_memory(true));
    const StepResult step = pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss());
    ASSERT_EQ(step.memory.size(), 2U);
    EXPECT_EQ(step.memory[0].parameter_bytes, 16 * 4);
    EXPECT_EQ(step.memory[1].parameter_bytes, 10 * 4);
    EXPECT_GT(step.memory[0].peak_bytes, 0);
    EXPECT_GT(step.memory[1].peak_bytes, 0);
    EXPECT_EQ(step.timeline.workers[1].peak_bytes, step.memory[1].peak_bytes);
  });
}

TEST(Processes, LayersOfOtherRanksAreNotBuilt) {
  static std::atomic<int> num_built;
  struct CountedImpl : torch::nn::Module {
    CountedImpl() { ++num_built; }
    at::Tensor forward(const at::Tensor& input) { return input * register_parameter("weight", torch::ones({1})); }
  };
  num_built = 0;
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    LayerChain chain;
    chain.add<torch::nn::ModuleHolder<CountedImpl>>("one");
    chain.add<torch::nn::ModuleHolder<CountedImpl>>("two");
    const Pipeline pipeline(chain, PipelineOptions(2).balance({1, 1}).peers(peers));
  });
  EXPECT_EQ(num_built, 2);  // each on one rank
}

TEST(Processes, OfASequentialEachKeepsItsOwnPart) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    torch::nn::Linear first(3, 4);
    torch::nn::Linear last(4, 2);
    torch::nn::Sequential model(first, torch::nn::ReLU(), last);
    Pipeline pipeline(model, small_options(peers).balance({}));  // cut by a profile
    torch::optim::Adam optimizer(pipeline->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss());
      optimizer.step();
    }
    const bool has_first = pipeline->named_parameters().contains("0.weight");
    const bool has_last = pipeline->named_parameters().contains("2.weight");
    EXPECT_EQ(has_first, peers->world().rank == 0);
    EXPECT_EQ(has_last, peers->world().rank == 1);
    EXPECT_EQ(first->weight.numel(), has_first ? 12 : 0);
    EXPECT_EQ(last->weight.numel(), has_last ? 8 : 0);
    EXPECT_EQ(pipeline->layers_per_stage().size(), 2U);
    EXPECT_EQ(pipeline->profile().layers.size(), 3U);
  });
}

// Tensors in a tuple, an undefined and an integer one among them.
struct ForkImpl : torch::nn::Module {
  ForkImpl() : linear(register_module("linear", torch::nn::Linear(3, 3))) {}
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input) {
    return {linear(input), at::Tensor(), (input > 0.5).to(torch::kLong)};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Fork);
struct JoinImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& value, const at::Tensor& nothing, const at::Tensor& number) {
    EXPECT_FALSE(nothing.defined());
    return (value * number.to(torch::kFloat)).narrow(1, 0, 2);
  }
};
TORCH_MODULE(Join);

TEST(Processes, TuplesCross) {
  LayerChain chain;
  chain.add<Fork>("fork").add<Join>("join");
  Pipeline expected(chain, PipelineOptions(1).num_micro_batches(3).peers(no_peers()));
  const at::Tensor loss = expected->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss;
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(3).balance({1, 1}).peers(peers));
    const at::Tensor input = small_input().requires_grad_();
    EXPECT_TRUE(same_bits(pipeline->train_step(input, small_target(), torch::nn::MSELoss()).loss, loss));
    EXPECT_TRUE(input.grad().defined());
    for (const auto& parameter : pipeline->named_parameters()) {
      EXPECT_TRUE(same_bits(parameter.value().grad(), expected->named_parameters()[parameter.key()].grad()));
    }
  });
}

TEST(Processes, SkipsThatDoNotFitTogetherAreToldToAll) {
  const auto errors = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    LayerChain chain;
    chain.add<Stash>("stash").add<torch::nn::Linear>("linear", 3, 2);
    Pipeline pipeline(chain, PipelineOptions(2).balance({1, 1}).peers(peers));
    pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss());
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(is_a<SkipError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("\"skip\" is stashed by layer 0 (stash), but never popped"));
  }
}

TEST(Processes, ALossThatIsNotFiniteIsRefusedByAllAndLeavesEverythingAsItWas) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    LayerChain chain;
    chain.add<torch::nn::Linear>("first", 3, 4).add<nn::DeferredBatchNorm1d>("norm", torch::nn::BatchNormOptions(4));
    chain.add<torch::nn::Linear>("last", 4, 2).add<nn::DeferredBatchNorm1d>("end", torch::nn::BatchNormOptions(2));
    Pipeline pipeline(chain, small_options(peers).balance({2, 2}).check_loss(true));
    const auto step = [&](const at::Tensor& target) {
      return pipeline->train_step(small_input(), target, torch::nn::MSELoss()).loss;
    };
    step(small_target());
    std::map<std::string, at::Tensor> before;
    for (const auto& parameter : pipeline->named_parameters()) {
      before[parameter.key()] = parameter.value().grad().clone();
    }
    for (const auto& buffer : pipeline->named_buffers()) before[buffer.key()] = buffer.value().clone();
    at::Tensor bad = small_target();
    bad[4][1] = std::numeric_limits<float>::infinity();
    try {
      step(bad);
      ADD_FAILURE();
    } catch (const NonFiniteLossError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the loss of micro-batch 1 (samples 3 to 4) is inf"));
    }
    EXPECT_EQ(pipeline->step(), 1);
    for (const auto& parameter : pipeline->named_parameters()) {
      EXPECT_TRUE(same_bits(parameter.value().grad(), before.at(parameter.key()))) << parameter.key();
    }
    for (const auto& buffer : pipeline->named_buffers()) {
      EXPECT_TRUE(same_bits(buffer.value(), before.at(buffer.key()))) << buffer.key();
    }
    step(small_target());
  });
}

// Nothing has run, and the next call is a good one.
void expect_refused_on_both(const std::function<void(Pipeline&, int rank)>& call, const std::string& text) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    try {
      call(pipeline, peers->world().rank);
      ADD_FAILURE() << "rank " << peers->world().rank << " refused nothing";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(text)) << "rank " << peers->world().rank;
    }
    EXPECT_EQ(pipeline->step(), 0);
    EXPECT_TRUE(pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss.defined());
  });
}

TEST(Processes, DifferentCallsAreRefused) {
  expect_refused_on_both(
      [](Pipeline& pipeline, int rank) {
        if (rank == 0) pipeline->forward(small_input());
        if (rank == 1) pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss());
      },
      "the call is forward on rank 0, but train_step on rank 1");
  expect_refused_on_both(
      [](Pipeline& pipeline, int rank) {
        if (rank == 1) pipeline->eval();
        try {
          pipeline->forward(small_input());
        } catch (...) {
          pipeline->train();
          throw;
        }
      },
      "training is on on rank 0, but off on rank 1");
  expect_refused_on_both(
      [](Pipeline& pipeline, int rank) {
        if (rank == 0) clip_grad_norm_(pipeline, 1);
        if (rank == 1) pipeline->forward(small_input());
      },
      "the call is clip_grad_norm_ on rank 0, but forward on rank 1");
}

TEST(Processes, DifferentBatchesAreRefused) {
  expect_refused_on_both(
      [](Pipeline& pipeline, int rank) {
        pipeline->train_step(small_input().narrow(0, 0, 7 - rank), small_target(), torch::nn::MSELoss());
      },
      "the number of rows of the inputs is 7 on rank 0, but 6 on rank 1");
  expect_refused_on_both(
      [](Pipeline& pipeline, int rank) {
        pipeline->train_step(rank == 0 ? small_input() : at::Tensor(),
                             rank == 1 ? small_target().narrow(0, 0, 5) : at::Tensor(), torch::nn::MSELoss());
      },
      "the inputs have 7 rows on rank 0, but the targets have 5 on rank 1");
}

TEST(Processes, ABatchThatOneRankCannotRunIsRefusedByAll) {
  expect_refused_on_both(
      [](Pipeline& pipeline, int rank) {
        pipeline->train_step(at::Tensor(), rank == 1 ? small_target() : at::Tensor(), torch::nn::MSELoss());
      },
      "the batch has no tensor that could be split into micro-batches");
}

TEST(Processes, DifferentSettingsAreRefusedByNameWhenThePipelineIsMade) {
  const auto errors = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const Pipeline pipeline(small_chain(), small_options(peers).seed(peers->world().rank));
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(is_a<FingerprintError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("seed is '0' on rank 0, but seed is '1' on rank 1"));
  }
  const auto shapes = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    torch::nn::Sequential model(torch::nn::Linear(3, 4 + peers->world().rank), torch::nn::ReLU());
    const Pipeline pipeline(model, small_options(peers).balance({1, 1}));
  });
  for (const auto& error : shapes) {
    EXPECT_TRUE(is_a<FingerprintError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("0.weight is '[4, 3] of Float' on rank 0"));
  }
}

TEST(Processes, DifferentTextsToAgreeOnAreRefusedByAllWithBoth) {
  const auto errors = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const double rate = peers->world().rank == 0 ? 0.1 : 0.2;
    const Pipeline pipeline(small_chain(), small_options(peers)
                                               .num_micro_batches(peers->world().rank + 1)
                                               .agree_on("data 7")
                                               .agree_on("learning rate " + std::to_string(rate).substr(0, 3)));
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(is_a<FingerprintError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("'learning rate 0.1' on rank 0, but 'learning rate 0.2' on rank 1"));
  }
  const auto missing = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    PipelineOptions options = small_options(peers);
    if (peers->world().rank == 1) options.agree_on("learning rate 0.1");
    const Pipeline pipeline(small_chain(), options);
  });
  for (const auto& error : missing) {
    EXPECT_THAT(text_of(error), HasSubstr("no such text on rank 0, but 'learning rate 0.1' on rank 1"));
  }
}

TEST(Processes, TextsToAgreeOnLaterAreComparedToo) {
  const auto errors = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    agree_on(pipeline, "the same");
    pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss());
    agree_on(pipeline, "weights " + std::to_string(peers->world().rank));
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(is_a<FingerprintError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("'weights 0' on rank 0, but 'weights 1' on rank 1"));
  }
}

// Every option that a rank may not have for itself, by the name that the error says.
TEST(Processes, EachOptionThatHasToBeTheSameIsCompared) {
  using Change = std::function<void(PipelineOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"num_micro_batches", [](PipelineOptions& options) { options.num_micro_batches(4); }},
      {"schedule", [](PipelineOptions& options) { options.schedule("gpipe"); }},
      {"schedule", [](PipelineOptions& options) { options.custom_schedule(schedules::gpipe(2, 3)); }},
      {"allow_noncanonical", [](PipelineOptions& options) { options.allow_noncanonical(true); }},
      {"chunks_per_worker", [](PipelineOptions& options) { options.chunks_per_worker(1); }},
      {"recompute", [](PipelineOptions& options) { options.recompute(Recompute::kAlways); }},
      {"recompute_by_stage",
       [](PipelineOptions& options) {
         options.recompute_by_stage({Recompute::kAlways, Recompute::kNever});
       }},
      {"rematerialization",
       [](PipelineOptions& options) {
         options.rematerialization({{}, parse_rematerialization("0-0")});
       }},
      {"optimizer_slots", [](PipelineOptions& options) { options.optimizer_slots(1); }},
      {"balance",
       [](PipelineOptions& options) {
         options.balance({2, 1});
       }},
      {"seed", [](PipelineOptions& options) { options.seed(6); }},
      {"threads_per_stage", [](PipelineOptions& options) { options.threads_per_stage(2); }},
      {"loss_reduction", [](PipelineOptions& options) { options.loss_reduction(LossReduction::kSum); }},
      {"replicated_inputs", [](PipelineOptions& options) { options.replicated_inputs({1}); }},
      {"check_loss", [](PipelineOptions& options) { options.check_loss(true); }},
      {"measure_memory", [](PipelineOptions& options) { options.measure_memory(false); }},
      {"memory_limit_bytes", [](PipelineOptions& options) { options.memory_limit_bytes(1 << 30); }}};
  for (const auto& [name, change] : changes) {
    const auto errors = try_ranks(2, [&, change = change](const std::shared_ptr<Peers>& peers) {
      PipelineOptions options = small_options(peers).measure_memory(true);
      if (peers->world().rank == 1) change(options);
      const Pipeline pipeline(small_chain(), options);
    });
    for (const auto& error : errors) {
      EXPECT_TRUE(is_a<FingerprintError>(error)) << name << text_of(error);
      EXPECT_THAT(text_of(error), HasSubstr(name + " is '")) << name;
    }
  }
  for (const auto& error : try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
         PipelineOptions options = small_options(peers);
         if (peers->world().rank == 1) options.devices({torch::kCPU}).watchdog_seconds(60).on_stuck([](const auto&) {});
         const Pipeline pipeline(small_chain(), options);
       })) {
    EXPECT_EQ(text_of(error), "");
  }
}

TEST(Processes, ALateRankIsNamedBeforeTheTimeout) {
  std::promise<int> named;
  run_on_ranks(2, [&](std::shared_ptr<Peers> peers) {
    PipelineOptions options = small_options(peers);
    if (peers->world().rank == 0) {
      options.on_late_rank([&](const PeerError& error) { named.set_value(error.place().rank); });
    }
    const Pipeline pipeline(small_chain(), options);
    if (peers->world().rank == 1) {
      EXPECT_EQ(named.get_future().get(), 1);
    }
  });  // each destructor waits for the other
}

TEST(Processes, AForkedChildOfOneTouchesNoConnection) {
  run_on_ranks(2, [&](std::shared_ptr<Peers> peers) {
    Pipeline pipeline(small_chain(), small_options(peers));
    const auto train = [&] {
      return pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss.item<double>();
    };
    train();
    const auto expect_call_error = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const CallError&) {
        return;
      }
      throw Error("this is no CallError");
    };
    if (peers->world().rank == 0) {
      EXPECT_EQ(run_forked([&] {
                  expect_call_error([&] { train(); });
                  expect_call_error([&] { any_rank(pipeline, true); });
                  expect_call_error([&] { Pipeline(small_chain(), small_options(peers)); });
                  pipeline = nullptr;
                  peers = nullptr;
                }),
                kChildDone);
    }
    EXPECT_GT(train(), 0);
    EXPECT_TRUE(any_rank(pipeline, true));
  });
}

TEST(Processes, WhatOneRankRefusesToMakeTheOthersDoNotWaitFor) {
  const auto errors = try_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const Pipeline pipeline(
        small_chain(),
        small_options(peers).balance(peers->world().rank == 1 ? std::vector<int>{1, 1} : std::vector<int>{1, 2}));
  });
  EXPECT_TRUE(is_a<FingerprintError>(errors[0])) << text_of(errors[0]);
  EXPECT_TRUE(is_a<InvalidArgument>(errors[1])) << text_of(errors[1]);
}

TEST(Processes, AsManyAsThereAreWorkers) {
  for (const auto& error : try_ranks(3, [&](const std::shared_ptr<Peers>& peers) {
         const Pipeline pipeline(small_chain(), small_options(peers));
       })) {
    EXPECT_TRUE(is_a<InvalidArgument>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("num_stages is 2, but no launcher started 3 processes"));
    EXPECT_THAT(text_of(error), HasSubstr("gpipe launch -n 2"));
  }
}

// A user's program, without a word about processes.
const Program kQuickstart("Quickstart", [] {
  for (int run = 0; run < 2; ++run) {  // the ranks meet again for the second one
    torch::manual_seed(run);
    torch::nn::Sequential model(torch::nn::Linear(3, 8), torch::nn::ReLU(), torch::nn::Linear(8, 2));
    Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(4));
    torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      last = pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss.item<double>();
      if (step == 0) first = last;
      optimizer.step();
    }
    EXPECT_LT(last, first);
    std::printf("loss %.17g\n", last);
  }
});

TEST(Processes, AProgramThatKnowsNothingOfThemRunsUnderALauncher) {
  RankProcesses ranks(2, "Quickstart", 30);
  std::vector<std::string> losses;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank, 60), 0) << ranks.output(rank);
    const std::string output = ranks.output(rank);
    const std::size_t begin = output.find("loss ");
    ASSERT_NE(begin, std::string::npos) << output;
    losses.push_back(output.substr(begin, output.find('\n', begin) - begin));
    EXPECT_NE(output.find("loss ", begin + 1), std::string::npos) << output;
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
}  // namespace gpipe::test
