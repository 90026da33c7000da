// The partition is the best of all, tried one by one on thousands of small chains.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>

#include "gpipe/error.h"
#include "gpipe/plan/partition.h"
#include "tests/plan/brute_force.h"

namespace gpipe {
namespace {

std::vector<int> sizes(const Partition& partition) {
  std::vector<int> result;
  for (const PartitionStage& stage : partition.stages) result.push_back(stage.num_layers);
  return result;
}

struct Features {
  bool zeros = false;
  bool messages = false;
  bool skips = false;
  bool speeds = false;
  bool recompute = false;
  bool forward_only = false;
  bool memory = false;
  bool links = false;   // of different workers
  bool limits = false;  // of different workers
  bool split = false;
};

// Chains whose seconds are multiples of 1/8, so that no sum is rounded.
class RandomChain {
 public:
  RandomChain(unsigned seed, const Features& features, int most_layers = 12) : random_(seed), features_(features) {
    const int num_layers = between(1, most_layers);
    for (int layer = 0; layer < num_layers; ++layer) profile.layers.push_back(random_layer(layer));
    if (features.skips) add_skips();
    options.num_stages = between(1, std::min(5, num_layers));
    options.num_micro_batches = between(0, 2) == 0 ? 1 : between(1, 20);
    options.optimizer_slots = between(0, 2);
    options.backward = !features.forward_only;
    if (features.messages) {
      options.link.latency_seconds = between(0, 4) * 0.25;
      options.link.bytes_per_second = 1 << between(0, 3);
    }
    for (int stage = 0; stage < options.num_stages; ++stage) {
      if (features.speeds || features.links || features.limits) options.workers.push_back(random_worker());
      if (features.recompute) options.recompute_share.push_back(between(0, 2) * 0.5);
    }
    options.live = live_for(options.num_stages);
    options.live_for = [this](int num_stages) { return live_for(num_stages); };
    if (features.memory) options.memory_limit_bytes = between(0, 120);
  }

  // A made-up schedule: what stages hold depends on how many there are, some numbers are impossible.
  std::vector<std::vector<Live>> live_for(int num_stages) const {
    if (num_stages % 4 == 3 && num_stages != options.num_stages) return {};
    std::vector<std::vector<Live>> live(num_stages);
    for (int stage = 0; stage < num_stages; ++stage) {
      live[stage] = {{1 + (num_stages - stage) % 4, 0}, {1, (num_stages + stage) % 3}};
      if (!features_.split) continue;
      live[stage].push_back({1 + stage % 2, stage % 2, (num_stages - stage) % 3, Live::Work::kInputGrad});
      live[stage].push_back({1, 0, 1 + (num_stages + stage) % 3, Live::Work::kWeightGrad});
    }
    return live;
  }

  Profile profile;
  PartitionOptions options;

 private:
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  LayerProfile random_layer(int index) {
    LayerProfile layer;
    layer.name = "layer" + std::to_string(index);
    const bool is_free = features_.zeros && between(0, 1) == 0;
    layer.forward_seconds = is_free ? 0 : between(0, 9);
    layer.backward_seconds = is_free ? 0 : between(0, 9);
    layer.parameter_bytes = between(0, 3);
    layer.activation_bytes = between(0, 5);
    layer.output_bytes = between(0, 8);
    if (between(0, 1) == 0) layer.gradient_bytes = between(0, 3);
    if (between(0, 1) == 0) layer.buffer_bytes = between(0, 2);
    if (between(0, 1) == 0) {
      const std::int64_t kept_before = profile.layers.empty() ? 0 : profile.layers.back().kept_output_bytes;
      layer.kept_output_bytes =
          between(0, static_cast<int>(std::min(layer.activation_bytes + kept_before, layer.output_bytes)));
    }
    if (between(0, 1) == 0) layer.forward_working_bytes = layer.activation_bytes + between(0, 9);
    if (between(0, 1) == 0) layer.backward_working_bytes = layer.activation_bytes + between(0, 9);
    if (features_.split) defer(layer);
    return layer;
  }

  WorkerCosts random_worker() {
    WorkerCosts worker;
    if (features_.speeds) worker.speed = std::ldexp(1, between(-1, 1));
    if (features_.limits && between(0, 2) > 0) worker.memory_limit_bytes = between(0, 160);
    if (features_.links && between(0, 2) > 0) {
      worker.link_to_next = LinkCosts{between(0, 4) * 0.25, std::ldexp(1, between(0, 3))};
    }
    return worker;
  }

  void defer(LayerProfile& layer) {
    const bool has_deferred = between(0, 2) > 0;
    if (has_deferred) layer.deferred_bytes = std::max(0, between(-3, 6));
    const std::int64_t before = profile.layers.empty() ? 0 : profile.layers.back().deferred_output_bytes;
    if (between(0, 1) == 0) {
      layer.deferred_output_bytes =
          between(0, static_cast<int>(std::min(deferred_bytes(layer) + before, layer.output_bytes)));
    }
    if (between(0, 1) == 0) layer.input_grad_working_bytes = layer.activation_bytes + between(0, 9);
    if (between(0, 1) == 0) layer.weight_grad_working_bytes = deferred_bytes(layer) + between(0, 9);
  }

  void add_skips() {
    const int last = static_cast<int>(profile.layers.size()) - 1;
    for (int skip = between(0, 6); skip > 0; --skip) {
      const int from = between(0, last);
      profile.skips.push_back({"skip", from, between(from, last), between(0, 8)});
    }
  }

  std::mt19937 random_;
  Features features_;
};

int smallest_that_fits(const RandomChain& chain) {
  for (int num_stages = 1; num_stages <= static_cast<int>(chain.profile.layers.size()); ++num_stages) {
    PartitionOptions options = chain.options;
    options.num_stages = num_stages;
    options.live = chain.live_for(num_stages);
    if (options.live.empty()) continue;
    options.workers.clear();
    options.recompute_share.clear();
    if (!test::try_all(chain.profile, options).layers_per_stage.empty()) return num_stages;
  }
  return 0;
}

bool have_one_limit(const PartitionOptions& options) {
  return std::none_of(options.workers.begin(), options.workers.end(),
                      [](const WorkerCosts& worker) { return worker.memory_limit_bytes.has_value(); });
}

// Returns whether there was a partition.
bool compare_with_brute_force(const RandomChain& chain) {
  const PartitionOptions& options = chain.options;
  const test::Verdict expected = test::try_all(chain.profile, options);
  try {
    const Partition found = partition(chain.profile, options);
    EXPECT_EQ(sizes(found), expected.layers_per_stage);
    EXPECT_EQ(found.slowest_seconds, expected.slowest);
    EXPECT_EQ(found.makespan_seconds, expected.sum + (options.num_micro_batches - 1) * expected.slowest);
    int begin = 0;
    for (std::size_t stage = 0; stage < found.stages.size(); ++stage) {
      const int end = begin + found.stages[stage].num_layers;
      EXPECT_EQ(found.stages[stage].seconds,
                test::stage_seconds(chain.profile, options, static_cast<int>(stage), begin, end));
      EXPECT_EQ(found.stages[stage].bytes,
                test::stage_bytes(chain.profile, options.optimizer_slots, options.live[stage], begin, end));
      begin = end;
    }
    return true;
  } catch (const InfeasibleError& error) {
    EXPECT_TRUE(expected.layers_per_stage.empty());
    EXPECT_EQ(error.missing_bytes(), expected.least_missing_bytes);
    if (!have_one_limit(options)) return false;
    EXPECT_EQ(error.smallest_num_stages(), smallest_that_fits(chain));
    return false;
  }
}

// Returns how many chains had a partition.
int compare_with_brute_force(const Features& features, int num_chains) {
  int feasible = 0;
  for (int seed = 0; seed < num_chains; ++seed) {
    RandomChain chain(seed, features);
    for (const Objective objective : {Objective::kMakespan, Objective::kSlowestStage}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", objective " << static_cast<int>(objective));
      chain.options.objective = objective;
      feasible += compare_with_brute_force(chain) ? 1 : 0;
      if (testing::Test::HasFailure()) return feasible;
    }
  }
  return feasible;
}

Features features(const std::string& letters) {
  const auto has = [&](char letter) { return letters.find(letter) != std::string::npos; };
  return {has('0'), has('m'), has('k'), has('s'), has('r'), has('f'), has('l'), has('d'), has('w'), has('i')};
}

TEST(PartitionBruteForce, EqualsBruteForceOnRandomChains) { EXPECT_EQ(compare_with_brute_force({}, 1000), 2000); }

TEST(PartitionBruteForce, EqualsBruteForceWithLayersThatCostNothing) {
  EXPECT_EQ(compare_with_brute_force(features("0"), 1000), 2000);
}

TEST(PartitionBruteForce, EqualsBruteForceWithMessagesAndSkips) {
  EXPECT_EQ(compare_with_brute_force(features("m"), 1000), 2000);
  EXPECT_EQ(compare_with_brute_force(features("mk"), 1000), 2000);
  EXPECT_EQ(compare_with_brute_force(features("0mk"), 500), 1000);
}

TEST(PartitionBruteForce, EqualsBruteForceWithWorkersOfDifferentSpeeds) {
  EXPECT_EQ(compare_with_brute_force(features("s"), 1000), 2000);
  EXPECT_EQ(compare_with_brute_force(features("0smk"), 1000), 2000);
}

TEST(PartitionBruteForce, EqualsBruteForceWithLinksOfDifferentWorkers) {
  EXPECT_EQ(compare_with_brute_force(features("d"), 1000), 2000);
  EXPECT_EQ(compare_with_brute_force(features("0smkd"), 1000), 2000);
  EXPECT_EQ(compare_with_brute_force(features("fkd"), 500), 1000);
}

TEST(PartitionBruteForce, EqualsBruteForceWithMemoryLimitsOfDifferentWorkers) {
  for (const char* letters : {"w", "wl", "wkd", "wl0smkrd"}) {
    const int feasible = compare_with_brute_force(features(letters), 1000);
    EXPECT_GT(feasible, 400) << letters;
    EXPECT_LT(feasible, 1900) << letters;
  }
}

TEST(PartitionBruteForce, EqualsBruteForceWithRecomputedOrMissingBackwards) {
  EXPECT_EQ(compare_with_brute_force(features("rsm"), 500), 1000);
  EXPECT_EQ(compare_with_brute_force(features("fmk"), 500), 1000);
}

TEST(PartitionBruteForce, EqualsBruteForceWithAMemoryLimit) {
  for (const char* letters : {"l", "lk", "l0smkr", "li", "lik", "li0smkr"}) {
    const int feasible = compare_with_brute_force(features(letters), 1000);
    EXPECT_GT(feasible, 400) << letters;
    EXPECT_LT(feasible, 1600) << letters;
  }
}

// The enumeration that the search saves itself: the least sum within each cap that some stage costs.
class Enumeration {
 public:
  Enumeration(const Profile& profile, const PartitionOptions& options)
      : num_layers_(static_cast<int>(profile.layers.size())), options_(options) {
    for (int stage = 0; stage < options.num_stages; ++stage) {
      for (int begin = 0; begin < num_layers_; ++begin) {
        if ((stage == 0) != (begin == 0)) continue;  // the first stage has the first layer
        for (int end = begin + 1; end <= num_layers_; ++end) {
          seconds_[{stage, begin, end}] = test::stage_seconds(profile, options, stage, begin, end);
        }
      }
    }
  }

  double least_makespan() const {
    double least = kNever;
    for (const auto& [stage, cap] : seconds_) {
      least = std::min(least, least_sum(cap) + (options_.num_micro_batches - 1) * cap);
    }
    return least;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double least_sum(double cap) const {
    std::vector<std::vector<double>> least(options_.num_stages + 1, std::vector<double>(num_layers_ + 1, kNever));
    least[options_.num_stages][num_layers_] = 0;
    for (auto stage = seconds_.rbegin(); stage != seconds_.rend(); ++stage) {
      const auto [index, begin, end] = stage->first;
      if (stage->second > cap) continue;
      least[index][begin] = std::min(least[index][begin], stage->second + least[index + 1][end]);
    }
    return least[0][0];
  }

  int num_layers_;
  const PartitionOptions& options_;
  std::map<std::tuple<int, int, int>, double> seconds_;
};

TEST(PartitionBruteForce, TheLeastMakespanIsThatOfAnEnumerationOfCapsOnLongerChains) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    RandomChain chain(seed, features("smk"), 24);
    chain.options.num_micro_batches = 1 + static_cast<int>(seed % 6) * 3;
    EXPECT_EQ(partition(chain.profile, chain.options).makespan_seconds,
              Enumeration(chain.profile, chain.options).least_makespan())
        << "seed " << seed;
  }
}

TEST(PartitionBruteForce, MeasuredSecondsAreOptimalUpToRounding) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomChain chain(seed, features("smkr"));
    for (LayerProfile& layer : chain.profile.layers) {
      layer.forward_seconds = std::exp(layer.forward_seconds) / 3e6;
      layer.backward_seconds = layer.backward_seconds / 7e3;
    }
    chain.options.link.bytes_per_second = 12345.6;
    for (WorkerCosts& worker : chain.options.workers) worker.speed *= 0.9;
    const test::Verdict expected = test::try_all(chain.profile, chain.options);
    const double makespan = expected.sum + (chain.options.num_micro_batches - 1) * expected.slowest;
    EXPECT_NEAR(partition(chain.profile, chain.options).makespan_seconds, makespan, 1e-13 * makespan)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace gpipe
