// What the planner leaves open is chosen as if everything had been tried in the simulator.
#include "gpipe/simulate/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "gpipe/error.h"
#include "gpipe/plan/rematerialize.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"
#include "tests/plan/brute_force.h"
#include "tests/plan/equal_layers.h"

namespace gpipe {
namespace {

using detail::with_rematerialization;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNone = std::numeric_limits<double>::infinity();
constexpr Recompute kModes[] = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};

Profile equal_layers(int num_layers) {
  Profile profile = test::equal_layers(num_layers);
  profile.samples_per_micro_batch = 2;
  for (LayerProfile& layer : profile.layers) {
    layer.output_bytes = 20;
    layer.kept_output_bytes = 20;
  }
  return profile;
}

PlanOptions all_open(int num_stages, int mini_batch_samples) {
  PlanOptions options;
  options.num_stages = num_stages;
  options.num_micro_batches = 0;
  options.mini_batch_samples = mini_batch_samples;
  options.schedule = "auto";
  options.recompute = Recompute::kAuto;
  options.rematerialize = false;
  return options;
}

std::vector<Recompute> modes_of(const Plan& plan) {
  return plan.recompute_by_stage.empty() ? std::vector<Recompute>(plan.layers_per_stage.size(), plan.recompute)
                                         : plan.recompute_by_stage;
}

class RandomModel {
 public:
  explicit RandomModel(unsigned seed, int most_layers = 6) : random_(seed) {
    profile.samples_per_micro_batch = between(1, 3);
    const int num_layers = between(2, most_layers);
    for (int index = 0; index < num_layers; ++index) {
      LayerProfile layer;
      layer.name = "layer" + std::to_string(index);
      layer.forward_seconds = between(1, 9);
      layer.backward_seconds = between(1, 18);
      layer.parameter_bytes = between(0, 20);
      layer.activation_bytes = between(0, 100);
      layer.output_bytes = between(0, 20);
      layer.kept_output_bytes = std::min<std::int64_t>(layer.activation_bytes, between(0, 1) * layer.output_bytes);
      if (between(0, 1) == 0) layer.forward_working_bytes = layer.activation_bytes + between(0, 50);
      if (between(0, 1) == 0) layer.backward_working_bytes = layer.activation_bytes + between(0, 50);
      profile.layers.push_back(layer);
    }
    if (between(0, 2) == 0) profile.skips.push_back({"skip", 0, num_layers - 1, between(0, 20)});
    options = all_open(between(1, std::min(3, num_layers)), between(1, 5));
    if (between(0, 1) == 0) options.link = {between(0, 4) * 0.25, 16};
    if (between(0, 3) > 0) options.memory_limit_bytes = between(100, 900);
  }

  void make_workers_differ() {
    options.workers.resize(options.num_stages);
    for (WorkerCosts& worker : options.workers) {
      worker.speed = between(1, 4) * 0.5;
      if (between(0, 2) > 0) worker.memory_limit_bytes = between(100, 900);
      if (between(0, 2) > 0) worker.link_to_next = LinkCosts{between(0, 4) * 0.25, 4.0 * between(1, 8)};
    }
  }

  Profile profile;
  PlanOptions options;

 private:
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::mt19937 random_;
};

bool fits(const PlanOptions& options, const std::vector<std::int64_t>& peak_bytes) {
  for (std::size_t worker = 0; worker < peak_bytes.size(); ++worker) {
    std::optional<std::int64_t> limit_bytes = options.memory_limit_bytes;
    if (!options.workers.empty() && options.workers[worker].memory_limit_bytes) {
      limit_bytes = options.workers[worker].memory_limit_bytes;
    }
    if (limit_bytes && peak_bytes[worker] > *limit_bytes) return false;
  }
  return true;
}

// The least simulated step of a schedule over all partitions and all modes of all stages; kNone if nothing fits.
double least_step(const Profile& profile, const PlanOptions& options, const Schedule& base) {
  double least = kNone;
  std::vector<int> sizes;
  test::for_each_partition(static_cast<int>(profile.layers.size()), base.num_stages, sizes,
                           [&](const std::vector<int>& layers) {
                             Costs costs = stage_costs(profile, layers, options.link, options.optimizer_slots);
                             costs.workers = options.workers;
                             int num_vectors = 1;
                             for (int stage = 0; stage < base.num_stages; ++stage) num_vectors *= 3;
                             for (int vector = 0; vector < num_vectors; ++vector) {
                               std::vector<Recompute> modes;
                               for (int rest = vector; static_cast<int>(modes.size()) < base.num_stages; rest /= 3) {
                                 modes.push_back(kModes[rest % 3]);
                               }
                               const Schedule schedule = with_recompute(base, modes);
                               if (!fits(options, peak_bytes_by_worker(schedule, stage_bytes(costs)))) continue;
                               least = std::min(least, simulate(schedule, costs).makespan_seconds);
                             }
                           });
  return least;
}

double least_step(const RandomModel& model, int most_chunks) {
  double least = kNone;
  const int num_workers = model.options.num_stages;
  for (int count = 1; count <= model.options.mini_batch_samples; count *= 2) {
    const Profile profile = for_micro_batches(model.profile, model.options.mini_batch_samples, count);
    for (const char* name : {"gpipe", "1f1b"}) {
      least = std::min(least, least_step(profile, model.options, make_schedule(name, num_workers, count)));
    }
    for (int chunks = 2; chunks <= most_chunks && num_workers > 1; ++chunks) {
      if (num_workers * chunks > static_cast<int>(profile.layers.size())) break;
      least =
          std::min(least, least_step(profile, model.options, make_schedule("interleaved", num_workers, count, chunks)));
    }
  }
  return least;
}

TEST(Planner, EqualsBruteForceOverPartitionsAndModesWithOneStageAWorker) {
  int found = 0;
  int mixed = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    RandomModel model(seed);
    model.options.chunks = 1;
    const double expected = least_step(model, 1);
    try {
      const PlanSearch search = search_plans(model.profile, model.options);
      EXPECT_NEAR(search.best.predicted_step_seconds, expected, 1e-9 * expected) << "seed " << seed;
      ++found;
      if (!search.best.recompute_by_stage.empty()) ++mixed;
    } catch (const InfeasibleError& error) {
      EXPECT_EQ(expected, kNone) << "seed " << seed << ": " << error.what();
      EXPECT_GT(error.missing_bytes(), 0);
    }
  }
  EXPECT_GT(found, 75);
  EXPECT_LT(found, 150);
  EXPECT_GT(mixed, 5);
}

TEST(Planner, EqualsBruteForceOverSchedulesToo) {
  int interleaved = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    RandomModel model(seed);
    const double expected = least_step(model, 4);
    try {
      const Plan best = plan(model.profile, model.options);
      EXPECT_NEAR(best.predicted_step_seconds, expected, 1e-9 * expected) << "seed " << seed;
      if (best.schedule == "interleaved") ++interleaved;
    } catch (const InfeasibleError&) {
      EXPECT_EQ(expected, kNone) << "seed " << seed;
    }
  }
  EXPECT_GT(interleaved, 5);
}

TEST(Planner, EqualsBruteForceWithWorkersThatDiffer) {
  int found = 0;
  int mixed = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    RandomModel model(seed);
    model.make_workers_differ();
    if (seed % 3 != 0) model.options.chunks = 1;
    const double expected = least_step(model, seed % 3 == 0 ? 4 : 1);
    try {
      const Plan best = plan(model.profile, model.options);
      EXPECT_NEAR(best.predicted_step_seconds, expected, 1e-9 * expected) << "seed " << seed;
      EXPECT_TRUE(fits(model.options, best.predicted_peak_bytes)) << "seed " << seed;
      EXPECT_EQ(best.costs.workers, model.options.workers);
      ++found;
      if (!best.recompute_by_stage.empty()) ++mixed;
    } catch (const InfeasibleError& error) {
      EXPECT_EQ(expected, kNone) << "seed " << seed << ": " << error.what();
      EXPECT_GT(error.missing_bytes(), 0);
    }
  }
  EXPECT_GT(found, 75);
  EXPECT_LT(found, 150);
  EXPECT_GT(mixed, 5);
}

TEST(Planner, RematerializesWhereTheMemoryOfOneWorkerIsShort) {
  PlanOptions options = all_open(2, 0);
  options.num_micro_batches = 4;
  options.schedule = "1f1b";
  options.rematerialize = true;
  options.workers.resize(2);
  options.workers[0].memory_limit_bytes = 700;  // two layers are held twice, with 80 bytes of weights: 480
  options.workers[1].speed = 0.25;
  const Plan best = plan(equal_layers(8), options);
  EXPECT_LE(best.predicted_peak_bytes[0], 700);
  ASSERT_EQ(best.rematerialization.size(), 2u);
  EXPECT_FALSE(best.rematerialization[0].empty());
  EXPECT_TRUE(best.rematerialization[1].empty());
}

TEST(Planner, NamesTheWorkerWhoseMemoryIsShort) {
  PlanOptions options = all_open(2, 0);
  options.num_micro_batches = 4;
  options.schedule = "1f1b";
  options.workers.resize(2);
  options.workers[1].memory_limit_bytes = 100;  // a layer has 40 bytes of weights and 100 of activations
  try {
    plan(equal_layers(4), options);
    FAIL() << "no layer fits the second worker";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.stage(), 1);
    EXPECT_EQ(error.smallest_num_stages(), 0);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("on stage 1, whose limit is 100 bytes"), HasSubstr("on worker 1")));
  }
}

TEST(Planner, WithNothingLeftToChooseThePartitionStillEqualsBruteForce) {
  int found = 0;
  int unlike_the_formula = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    RandomModel model(seed);
    PlanOptions options = model.options;
    options.schedule = seed % 2 == 0 ? "1f1b" : "gpipe";
    options.recompute = kModes[seed % 3];
    options.num_micro_batches = 1 + static_cast<int>(seed % 5);
    options.mini_batch_samples = 0;
    const Schedule schedule = with_recompute(
        make_schedule(options.schedule, options.num_stages, options.num_micro_batches), options.recompute);
    double expected = kNone;
    std::vector<int> sizes;
    test::for_each_partition(
        static_cast<int>(model.profile.layers.size()), options.num_stages, sizes, [&](const std::vector<int>& layers) {
          const Costs costs = stage_costs(model.profile, layers, options.link, options.optimizer_slots);
          const std::vector<std::int64_t> peaks = peak_bytes_by_worker(schedule, stage_bytes(costs));
          const std::int64_t most = *std::max_element(peaks.begin(), peaks.end());
          if (most > options.memory_limit_bytes.value_or(most)) return;
          expected = std::min(expected, simulate(schedule, costs).makespan_seconds);
        });
    try {
      const Plan best = plan(model.profile, options);
      EXPECT_NEAR(best.predicted_step_seconds, expected, 1e-9 * expected) << "seed " << seed;
      ++found;
      if (best.layers_per_stage != partitioned_plan(model.profile, options).layers_per_stage) ++unlike_the_formula;
    } catch (const InfeasibleError&) {
      EXPECT_EQ(expected, kNone) << "seed " << seed;
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(unlike_the_formula, 3);
}

TEST(Planner, GivenModesThatDoNotFitAreRefused) {
  PlanOptions options = all_open(2, 8);
  options.schedule = "1f1b";
  options.recompute = Recompute::kNever;
  options.recompute_by_stage = {Recompute::kNever, Recompute::kAlways};
  options.memory_limit_bytes = 1;
  EXPECT_THROW(plan(equal_layers(4), options), InfeasibleError);
}

TEST(Planner, MoreChunksThanThereAreLayersAreRefused) {
  PlanOptions options = all_open(2, 8);
  options.chunks = std::numeric_limits<int>::max();
  EXPECT_THROW(plan(equal_layers(4), options), InvalidArgument);
}

TEST(Planner, BytesBeyondTheLargestNumberAreRefusedAsTooMany) {
  Profile profile = equal_layers(8);
  for (LayerProfile& layer : profile.layers) layer.parameter_bytes = std::int64_t{1} << 59;
  PlanOptions options = all_open(2, 8);
  options.schedule = "interleaved";
  options.optimizer_slots = std::numeric_limits<int>::max();
  options.memory_limit_bytes = 1000;
  options.rematerialize = true;
  EXPECT_THROW(plan(profile, options), InfeasibleError);
}

TEST(Planner, StagesOfAWorkerMayHaveUnequalSharesOfItsMemory) {
  Profile profile = equal_layers(4);
  profile.layers[0].parameter_bytes = 4000;
  PlanOptions options = all_open(2, 0);
  options.num_micro_batches = 4;
  options.schedule = "interleaved";
  options.recompute = Recompute::kNever;
  const std::vector<std::int64_t> peaks = plan(profile, options).predicted_peak_bytes;
  options.memory_limit_bytes = *std::max_element(peaks.begin(), peaks.end());
  EXPECT_THROW(partitioned_plan(profile, options), InfeasibleError);
  EXPECT_EQ(plan(profile, options).predicted_peak_bytes, peaks);
}

TEST(Planner, FrozenWeightsHaveNoOptimizerState) {
  Profile profile = equal_layers(1);
  profile.layers[0].parameter_bytes = 100;
  profile.layers[0].gradient_bytes = 40;
  PlanOptions options;
  options.optimizer_slots = 2;
  const std::int64_t with_state = plan(profile, options).predicted_peak_bytes.front();
  options.optimizer_slots = 0;
  EXPECT_EQ(with_state - plan(profile, options).predicted_peak_bytes.front(), 2 * 40);
}

TEST(Planner, NoStageRecomputesThatFitsWithout) {
  int recomputing = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    RandomModel model(seed, 10);
    model.options.chunks = 1;
    model.options.num_micro_batches = 4;
    model.options.mini_batch_samples = 0;
    Plan best;
    try {
      best = plan(model.profile, model.options);
    } catch (const InfeasibleError&) {
      continue;
    }
    const std::vector<Recompute> modes = modes_of(best);
    for (std::size_t stage = 0; stage < modes.size(); ++stage) {
      if (modes[stage] == Recompute::kNever) continue;
      ++recomputing;
      std::vector<Recompute> without = modes;
      without[stage] = Recompute::kNever;
      const Schedule schedule =
          with_recompute(make_schedule(best.schedule, best.num_workers(), best.num_micro_batches), without);
      EXPECT_GT(peak_bytes_by_worker(schedule, stage_bytes(best.costs))[stage], *model.options.memory_limit_bytes)
          << "seed " << seed << ", stage " << stage;
    }
  }
  EXPECT_GT(recomputing, 10);
}

TEST(Planner, TheBestFitsIsProvenAndIsFirstOfItsCandidates) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    RandomModel model(seed, 12);
    model.options.rematerialize = seed % 2 == 1;
    PlanSearch search;
    try {
      search = search_plans(model.profile, model.options);
    } catch (const InfeasibleError&) {
      continue;
    }
    const Plan& best = search.best;
    ValidateOptions options;
    options.routes = best.costs.routes;
    options.stages = stage_bytes(best.costs);
    if (model.options.memory_limit_bytes) {
      options.memory_limit_bytes.assign(best.num_workers(), *model.options.memory_limit_bytes);
    }
    EXPECT_EQ(validate(schedule_of(best), options).peak_bytes, best.predicted_peak_bytes) << "seed " << seed;
    EXPECT_EQ(search.candidates.front().step_seconds, best.predicted_step_seconds);
    EXPECT_EQ(search.candidates.front().layers_per_stage, best.layers_per_stage);
    EXPECT_EQ(search.candidates.front().recompute == "per layer", !best.rematerialization.empty());
    for (const PlanCandidate& candidate : search.candidates) {
      if (candidate.missing_bytes > 0) continue;
      EXPECT_GE(candidate.step_seconds, best.predicted_step_seconds * (1 - 1e-9));
      EXPECT_LE(candidate.fullest_bytes, model.options.memory_limit_bytes.value_or(candidate.fullest_bytes));
    }
  }
}

TEST(Planner, AmongEqualsTakesFewerMicroBatchesAndThePlainerSchedule) {
  PlanOptions options = all_open(1, 64);  // one worker has no bubble to fill
  const Plan best = plan(equal_layers(4), options);
  EXPECT_EQ(best.num_micro_batches, 1);
  EXPECT_EQ(best.schedule, "1f1b");
  EXPECT_EQ(best.recompute, Recompute::kNever);
}

TEST(Planner, MoreMicroBatchesFillThePipelineAndALatencySetsTheirNumber) {
  PlanOptions options = all_open(4, 64);
  options.schedule = "1f1b";
  EXPECT_EQ(plan(equal_layers(8), options).num_micro_batches, 64);
  options.link.latency_seconds = 5;  // of each round trip, what the K micro-batches in flight do not hide
  const int with_latency = plan(equal_layers(8), options).num_micro_batches;
  EXPECT_GT(with_latency, 1);
  EXPECT_LT(with_latency, 64);
}

TEST(Planner, RecomputesWhereTheMemoryIsShort) {
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = 4;
  options.recompute = Recompute::kAuto;
  options.rematerialize = false;
  const Plan free = plan(equal_layers(4), options);
  EXPECT_EQ(free.recompute, Recompute::kNever);
  EXPECT_THAT(free.recompute_by_stage, IsEmpty());
  EXPECT_THAT(free.layers_per_stage, ElementsAre(2, 2));
  // Stage 0 holds 2 micro-batches of 180 bytes and 20 of the output at work, stage 1 one of 200 and its input.
  EXPECT_THAT(free.predicted_peak_bytes, ElementsAre(80 + 380, 80 + 220));
  options.memory_limit_bytes = 80 + 379;
  const Plan tight = plan(equal_layers(4), options);
  EXPECT_THAT(modes_of(tight), ElementsAre(Recompute::kAlways, Recompute::kNever));
  EXPECT_EQ(tight.recompute, Recompute::kAuto);
  EXPECT_GT(tight.predicted_step_seconds, free.predicted_step_seconds);
}

TEST(Planner, WithNothingLeftToChooseThePartitionIsThatOfTheObjective) {
  PlanOptions options;
  options.num_stages = 3;
  options.num_micro_batches = 5;
  options.objective = Objective::kSlowestStage;
  Profile profile = equal_layers(7);
  profile.layers[2].forward_seconds = 4;
  const PlanSearch search = search_plans(profile, options);
  EXPECT_EQ(search.best.layers_per_stage, partitioned_plan(profile, options).layers_per_stage);
  ASSERT_EQ(search.candidates.size(), 1u);
  const Timeline timeline = simulate(schedule_of(search.best), search.best.costs);
  EXPECT_EQ(search.best.predicted_step_seconds, timeline.makespan_seconds);
  EXPECT_EQ(search.best.predicted_peak_bytes[1], timeline.workers[1].peak_bytes);
  EXPECT_EQ(search.candidates[0].step_seconds, timeline.makespan_seconds);
  EXPECT_EQ(search.candidates[0].recompute, "never");
}

TEST(Planner, ExplainsItsChoiceBestFirst) {
  PlanOptions options = all_open(2, 8);
  options.memory_limit_bytes = 400;
  const PlanSearch search = search_plans(equal_layers(4), options);
  const std::string text = explain(search);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<std::ptrdiff_t>(1 + search.candidates.size()));
  EXPECT_THAT(text, AllOf(HasSubstr("step"), HasSubstr("fullest worker"), HasSubstr("does not fit: lacks"),
                          HasSubstr("interleaved"), HasSubstr("gpipe")));
  const std::string first = text.substr(text.find('\n') + 1);
  EXPECT_THAT(first.substr(0, first.find('\n')), AllOf(HasSubstr(search.best.schedule), HasSubstr("worker")));
  EXPECT_EQ(explain(search_plans(equal_layers(4), options)), text);
  PlanSearch twice = search;
  twice.candidates.insert(twice.candidates.begin(), twice.candidates.front());
  EXPECT_EQ(explain(twice), text) << "what says the same is said once";
}

TEST(Planner, SaysWhatTheNearestCandidateLacks) {
  PlanOptions options = all_open(2, 8);
  options.memory_limit_bytes = 90;
  try {
    plan(equal_layers(4), options);
    FAIL() << "the weights alone need 80 bytes a stage";
  } catch (const InfeasibleError& error) {
    EXPECT_GT(error.missing_bytes(), 0);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("candidates fits; the nearest is"), HasSubstr("8 micro-batches"),
                                    HasSubstr("recompute")));
  }
}

TEST(Planner, RefusesToChooseWithoutKnowingTheSamples) {
  const auto refusal = [](const Profile& profile, const PlanOptions& options) -> std::string {
    try {
      plan(profile, options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_THAT(refusal(equal_layers(4), all_open(2, 0)), HasSubstr("give mini_batch_samples"));
  Profile unknown = equal_layers(4);
  unknown.samples_per_micro_batch = 0;
  EXPECT_THAT(refusal(unknown, all_open(2, 8)), HasSubstr("samples_per_micro_batch"));
  EXPECT_THAT(refusal(equal_layers(1), all_open(2, 8)), HasSubstr("at most 1 workers, or split layers"));
  PlanOptions v = all_open(2, 8);
  v.schedule = "zb-v";
  EXPECT_THAT(refusal(equal_layers(3), v),
              HasSubstr("ask for at most 1 workers, take zb-h1, which puts one stage on each, or split layers"));
  EXPECT_THAT(refusal(equal_layers(1), v), HasSubstr("for these 4 stages; split layers"));
  PlanOptions options = all_open(2, 8);
  options.chunks = 3;
  EXPECT_THAT(refusal(equal_layers(4), options), HasSubstr("no schedule puts 3 stages on each of 2 workers"));
}

TEST(Planner, OffersTheSchedulesThatAPlanCanHave) {
  PlanOptions options;
  options.schedule = "serch";
  EXPECT_THAT([&] { plan(equal_layers(2), options); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("did you mean search?"), HasSubstr("The schedules are auto, search, gpipe"))));
}

// All that begin with `before`, and go on in the layers [begin, end).
void for_each_run_from(int begin, int end, const Rematerialization& before, bool may_be_all,
                       const std::function<void(const Rematerialization&)>& visit) {
  visit(before);
  for (int first = begin; first < end; ++first) {
    for (int last = first; last < end; ++last) {
      if (!may_be_all && first == begin && last == end - 1 && before.empty()) continue;
      for_each_run_from(first, last + 1, {}, false, [&](const Rematerialization& nested) {
        Rematerialization runs = before;
        runs.push_back({first, last + 1, nested});
        for_each_run_from(last + 1, end, runs, true, visit);
      });
    }
  }
}

// The least simulated step of one stage, over all rematerializations with and without recompute.
double least_rematerialized_step(const Profile& profile, const PlanOptions& options) {
  const int num_layers = static_cast<int>(profile.layers.size());
  const Costs costs = stage_costs(profile, {num_layers}, options.link, options.optimizer_slots);
  const std::vector<RematerializationCosts> layers = rematerialization_costs(profile, 0, num_layers);
  double least = kNone;
  for (const Recompute mode : kModes) {
    const Schedule schedule = with_recompute(make_schedule(options.schedule, 1, options.num_micro_batches), mode);
    for_each_run_from(0, num_layers, {}, true, [&](const Rematerialization& runs) {
      Costs tried = costs;
      tried.stages[0] = with_rematerialization(costs.stages[0], layers, runs);
      if (peak_bytes_by_worker(schedule, stage_bytes(tried))[0] > *options.memory_limit_bytes) return;
      least = std::min(least, simulate(schedule, tried).makespan_seconds);
    });
  }
  return least;
}

TEST(Planner, EqualsBruteForceOverTheRematerializationsOfOneStage) {
  int dropping = 0;
  int fitting = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    RandomModel model(seed, 5);
    model.profile.skips.clear();
    model.options.num_stages = 1;
    model.options.schedule = seed % 2 == 0 ? "gpipe" : "1f1b";
    model.options.num_micro_batches = 1 + static_cast<int>(seed % 3);
    model.options.mini_batch_samples = 0;
    model.options.rematerialize = true;
    if (!model.options.memory_limit_bytes) continue;
    const double expected = least_rematerialized_step(model.profile, model.options);
    double without = kNone;
    PlanOptions options = model.options;
    options.rematerialize = false;
    try {
      without = plan(model.profile, options).predicted_step_seconds;
    } catch (const InfeasibleError&) {  // then it is to be better than that
    }
    try {
      const Plan best = plan(model.profile, model.options);
      EXPECT_NEAR(best.predicted_step_seconds, expected, 1e-9 * expected) << "seed " << seed;
      EXPECT_LE(best.predicted_peak_bytes[0], *model.options.memory_limit_bytes);
      if (best.predicted_step_seconds < without * (1 - 1e-9)) {
        EXPECT_EQ(best.rematerialization.size(), 1u);
        ++(without == kNone ? fitting : dropping);
      }
    } catch (const InfeasibleError&) {
      EXPECT_EQ(expected, kNone) << "seed " << seed;
    }
  }
  EXPECT_GT(dropping, 5);  // is faster than to recompute the stage as a whole
  EXPECT_GT(fitting, 2);   // fits where that does not
}

TEST(Planner, DropsSomeLayersWhereTheMemoryIsShort) {
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = 4;
  options.recompute = Recompute::kAuto;
  options.memory_limit_bytes = 80 + 379;  // one byte less than without recompute: see above
  const PlanSearch search = search_plans(equal_layers(4), options);
  const Plan& best = search.best;
  ASSERT_EQ(best.rematerialization.size(), 2u);
  EXPECT_THAT(modes_of(best), ElementsAre(Recompute::kNever, Recompute::kNever));
  EXPECT_EQ(to_text(best.rematerialization[0]), "0-0");
  EXPECT_EQ(to_text(best.rematerialization[1]), "");
  // A second forward of one layer, in the backward of stage 0. It drops the 100 bytes of that layer.
  EXPECT_EQ(best.costs.stages[0].backward_seconds, 4 + 1);
  EXPECT_EQ(best.partition.stages[0].seconds, best.partition.stages[1].seconds + 1);
  EXPECT_LE(best.predicted_peak_bytes[0], 80 + 379);
  EXPECT_EQ(best.partition.stages[0].bytes, best.predicted_peak_bytes[0]);
  EXPECT_EQ(search.candidates.front().recompute, "per layer");
  EXPECT_THAT(explain(search), HasSubstr("per layer"));
  options.rematerialize = false;
  EXPECT_GT(plan(equal_layers(4), options).predicted_step_seconds, best.predicted_step_seconds);
}

TEST(Planner, DoesNotDropLayersOfStagesThatUseSkips) {
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = 4;
  options.recompute = Recompute::kAuto;
  options.memory_limit_bytes = 80 + 379;
  Profile profile = equal_layers(4);
  profile.skips = {{"skip", 0, 1, 1}};
  const Plan best = plan(profile, options);
  EXPECT_TRUE(best.rematerialization.empty() || best.rematerialization[0].empty());
}

TEST(ForMicroBatches, ScalesWhatGrowsWithTheSamples) {
  Profile profile = equal_layers(1);
  profile.layers[0].forward_working_bytes = 101;
  profile.layers[0].backward_working_bytes = 105;
  profile.layers[0].deferred_bytes = 61;
  profile.layers[0].deferred_output_bytes = 5;
  profile.layers[0].input_grad_working_bytes = 103;
  profile.layers[0].weight_grad_working_bytes = 71;
  profile.layers[0].buffer_bytes = 7;
  profile.layers[0].input_grad_seconds = 1;
  profile.skips = {{"skip", 0, 0, 9}};
  const Profile scaled = for_micro_batches(profile, 10, 4);  // 3 + 3 + 2 + 2 samples; 2 were measured
  EXPECT_EQ(scaled.samples_per_micro_batch, 3);
  EXPECT_EQ(scaled.layers[0].forward_seconds, 1.25);
  EXPECT_EQ(scaled.layers[0].backward_seconds, 2.5);
  EXPECT_EQ(scaled.layers[0].input_grad_seconds, 1.25);
  EXPECT_EQ(scaled.layers[0].activation_bytes, 150);
  EXPECT_EQ(scaled.layers[0].forward_working_bytes, 152);
  EXPECT_EQ(scaled.layers[0].backward_working_bytes, 158);
  EXPECT_EQ(scaled.layers[0].deferred_bytes, 92);
  EXPECT_EQ(scaled.layers[0].deferred_output_bytes, 8);
  EXPECT_EQ(scaled.layers[0].input_grad_working_bytes, 155);
  EXPECT_EQ(scaled.layers[0].weight_grad_working_bytes, 107);
  EXPECT_EQ(scaled.layers[0].output_bytes, 30);
  EXPECT_EQ(scaled.layers[0].kept_output_bytes, 30);
  EXPECT_EQ(scaled.skips[0].bytes, 14);
  EXPECT_EQ(scaled.layers[0].parameter_bytes, 10);
  EXPECT_EQ(scaled.layers[0].buffer_bytes, 7);
  EXPECT_THROW(for_micro_batches(profile, 3, 4), InvalidArgument);
}

TEST(ForMicroBatches, LeavesFixedSecondsAsTheyAre) {
  Profile profile = equal_layers(2);
  profile.layers[0].fixed_forward_seconds = 0.5;
  profile.layers[0].fixed_backward_seconds = 1;
  profile.layers[0].input_grad_seconds = 0.5;
  profile.layers[0].weight_grad_seconds = 1.5;
  const Profile scaled = for_micro_batches(profile, 4, 4);  // half of what was measured
  EXPECT_EQ(scaled.layers[0].forward_seconds, 0.75);
  EXPECT_EQ(scaled.layers[0].backward_seconds, 1.5);
  EXPECT_EQ(scaled.layers[0].input_grad_seconds, 0.375);  // a quarter of the backward, and of what is fixed of it
  EXPECT_EQ(scaled.layers[0].weight_grad_seconds, 1.125);
  EXPECT_EQ(scaled.layers[0].fixed_forward_seconds, 0.5);
  EXPECT_EQ(scaled.layers[0].fixed_backward_seconds, 1);
  EXPECT_EQ(scaled.layers[1].forward_seconds, 0.5);
  EXPECT_EQ(scaled.layers[1].backward_seconds, 1);
  // Parts that are no parts.
  profile.layers[0].backward_seconds = profile.layers[0].fixed_backward_seconds.emplace(5e-324);
  profile.layers[0].weight_grad_seconds = std::numeric_limits<double>::max();
  EXPECT_NO_THROW(check_profile(for_micro_batches(profile, 4, 4)));
}

// M micro-batches of 8 / M samples take 3 s · (f + (1 - f) 4 / M) in one layer, where f is fixed, and there are M + 1
// of them in a row: without f, the more the better; with a quarter, 15.75 s, 15 s and 16.875 s for M = 2, 4 and 8.
TEST(Planner, ChoosesFewerMicroBatchesWhereAPartOfTheCostIsFixed) {
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = 0;
  options.mini_batch_samples = 8;
  Profile profile = equal_layers(2);
  EXPECT_EQ(plan(profile, options).num_micro_batches, 8);
  const auto with_fixed = [&](double share) {
    for (LayerProfile& layer : profile.layers) {
      layer.fixed_forward_seconds = share * layer.forward_seconds;
      layer.fixed_backward_seconds = share * layer.backward_seconds;
    }
    return plan(profile, options);
  };
  EXPECT_EQ(with_fixed(0).num_micro_batches, 8);
  EXPECT_EQ(with_fixed(0.25).num_micro_batches, 4);
  EXPECT_DOUBLE_EQ(with_fixed(0.25).predicted_step_seconds, 15);
  EXPECT_EQ(with_fixed(0.9).num_micro_batches, 1);
  for (LayerProfile& layer : profile.layers) layer.input_grad_seconds = layer.weight_grad_seconds = 0.5;
  options.schedule = "zb-h1";  // whose backward is shorter than what is fixed of the whole one
  EXPECT_NO_THROW(with_fixed(0.9));
}

}  // namespace
}  // namespace gpipe
