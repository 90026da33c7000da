// Numbers that nobody means, where a user may give numbers: each is refused with a typed error, or the result is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/plan/given_partition.h"
#include "gpipe/plan/partition.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/rematerializer.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/planner.h"

namespace gpipe {
namespace {

using detail::partition_of;
using detail::Rematerializer;
using ::testing::HasSubstr;

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

const std::vector<int>& hostile_ints() {
  static const std::vector<int> values = {
      std::numeric_limits<int>::min(), -1, 0, 1, 1 << 16, (1 << 30) + 1, kMaxInt - 1, kMaxInt};
  return values;
}

// True if it went well; false if it was refused. Anything but an error of ours fails the test.
bool goes_well(const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const Error&) {
    return false;
  }
}

Profile small_profile() {
  Profile profile;
  for (const char* name : {"a", "b", "c", "d"}) {
    LayerProfile layer;
    layer.name = name;
    layer.forward_seconds = 1;
    layer.backward_seconds = 2;
    layer.parameter_bytes = layer.activation_bytes = layer.output_bytes = 16;
    profile.layers.push_back(layer);
  }
  profile.samples_per_micro_batch = 2;
  return profile;
}

TEST(HostileNumbers, InEachOptionOfAPlanAreRefusedOrPlanned) {
  const std::vector<int PlanOptions::*> options = {&PlanOptions::num_stages, &PlanOptions::num_micro_batches,
                                                   &PlanOptions::chunks, &PlanOptions::optimizer_slots,
                                                   &PlanOptions::mini_batch_samples};
  for (const char* schedule : {"1f1b", "interleaved", "auto"}) {
    for (const auto option : options) {
      for (const int value : hostile_ints()) {
        PlanOptions given;
        given.num_stages = 2;
        given.num_micro_batches = 4;
        given.schedule = schedule;
        given.memory_limit_bytes = 100000;
        given.*option = value;
        goes_well([&] {
          const Plan planned = plan(small_profile(), given);
          std::int64_t num_layers = 0;
          for (const int count : planned.layers_per_stage) num_layers += count;
          EXPECT_EQ(num_layers, 4);
        });
      }
    }
  }
}

TEST(HostileNumbers, InALimitOfAPlanAreRefusedOrPlanned) {
  for (const Recompute recompute : {Recompute::kNever, Recompute::kAuto}) {
    for (const std::int64_t limit : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::int64_t{0},
                                     std::int64_t{1}, kMax - 1, kMax}) {
      PlanOptions options;
      options.num_stages = 2;
      options.num_micro_batches = 4;
      options.recompute = recompute;
      options.memory_limit_bytes = limit;
      EXPECT_EQ(goes_well([&] { plan(small_profile(), options); }), limit >= kMax - 1) << limit;
    }
  }
}

TEST(HostileNumbers, InEachFieldOfAProfileAreRefusedOrPlanned) {
  const std::vector<std::function<std::int64_t&(LayerProfile&)>> fields = {
      [](LayerProfile& layer) -> std::int64_t& { return layer.parameter_bytes; },
      [](LayerProfile& layer) -> std::int64_t& { return layer.activation_bytes; },
      [](LayerProfile& layer) -> std::int64_t& { return layer.output_bytes; },
      [](LayerProfile& layer) -> std::int64_t& { return layer.kept_output_bytes; },
      [](LayerProfile& layer) -> std::int64_t& { return layer.buffer_bytes; },
      [](LayerProfile& layer) -> std::int64_t& { return layer.gradient_bytes.emplace(0); },
      [](LayerProfile& layer) -> std::int64_t& { return layer.forward_working_bytes.emplace(0); },
      [](LayerProfile& layer) -> std::int64_t& { return layer.backward_working_bytes.emplace(0); },
      [](LayerProfile& layer) -> std::int64_t& { return layer.deferred_bytes.emplace(0); },
      [](LayerProfile& layer) -> std::int64_t& { return layer.deferred_output_bytes; },
      [](LayerProfile& layer) -> std::int64_t& { return layer.input_grad_working_bytes.emplace(0); },
      [](LayerProfile& layer) -> std::int64_t& {
        layer.deferred_bytes = 8;
        return layer.weight_grad_working_bytes.emplace(0);
      }};
  for (const auto& [schedule, recompute] :
       {std::pair("1f1b", Recompute::kNever), std::pair("1f1b", Recompute::kAuto),
        std::pair("zb-h1", Recompute::kNever), std::pair("zb-h1", Recompute::kAuto)}) {
    for (const auto& field : fields) {
      for (const std::int64_t value : {std::int64_t{-1}, kMax / 4, kMax / 2, kMax - 300, kMax}) {
        for (std::size_t layer = 0; layer < 4; ++layer) {
          Profile profile = small_profile();
          field(profile.layers[layer]) = value;
          PlanOptions options;
          options.num_stages = 2;
          options.num_micro_batches = 4;
          options.schedule = schedule;
          options.recompute = recompute;
          options.memory_limit_bytes = kMax;
          goes_well([&] { plan(profile, options); });
          goes_well([&] { for_micro_batches(profile, kMaxInt, 1); });
        }
      }
    }
  }
}

TEST(HostileNumbers, OfLayersPerStageDoNotAddUpToThoseOfTheModel) {
  PartitionOptions options;
  options.num_stages = 3;
  EXPECT_FALSE(goes_well([&] { partition_of(small_profile(), {kMaxInt, kMaxInt, 6}, options); }));
  EXPECT_FALSE(goes_well([&] { stage_costs(small_profile(), {kMaxInt, kMaxInt, 6}, {}, 0); }));
}

TEST(HostileNumbers, OfEverySchedulesAreRefusedOrMakeOne) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int value : hostile_ints()) {
      goes_well([&] { make_schedule(info.name, value, 2, 0); });
      const bool makes = goes_well([&] { make_schedule(info.name, 2, value, 0); });
      EXPECT_EQ(makes, value == 1 || value == 1 << 16) << info.name << " " << value;
      goes_well([&] { make_schedule(info.name, 2, 2, value); });
      goes_well([&] { make_schedule(info.name, value, value, value); });
    }
  }
}

TEST(HostileNumbers, OfBytesToRematerializeAreRefusedOrPlanned) {
  const std::vector<std::int64_t RematerializationCosts::*> fields = {
      &RematerializationCosts::activation_bytes, &RematerializationCosts::output_bytes,
      &RematerializationCosts::working_bytes, &RematerializationCosts::output_grad_bytes};
  for (const auto field : fields) {
    for (const std::int64_t value : {std::int64_t{-1}, kMax / 2, kMax / 2 + 1, kMax}) {
      for (const int num_held : {1, 2, kMaxInt}) {
        RematerializationCosts costs;
        costs.forward_seconds = costs.backward_seconds = 1;
        costs.*field = value;
        for (const std::int64_t limit : {std::int64_t{0}, kMax / 2, kMax}) {
          goes_well([&] { Rematerializer({costs}).plan(limit, num_held); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpipe
