// Memory accounts: every byte is booked once, on the right account, and booked off once.
#include "gpipe/model/memory_account.h"

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<MemoryAccount> make_account(std::int64_t limit_bytes = 0) {
  return std::make_shared<MemoryAccount>("stage 2", limit_bytes);
}

torch::Tensor make_bytes(std::int64_t bytes) { return torch::empty({bytes}, torch::kUInt8); }

torch::Tensor make_bytes_on(const std::shared_ptr<MemoryAccount>& account, std::int64_t bytes) {
  const MemoryScope scope(account);
  return make_bytes(bytes);
}

void expect_bytes(const MemoryAccount& account, std::int64_t live_bytes, std::int64_t peak_bytes) {
  EXPECT_EQ(account.live_bytes(), live_bytes);
  EXPECT_EQ(account.peak_bytes(), peak_bytes);
}

TEST(MemoryAccountTest, StartsEmptyWithItsNameAndLimit) {
  const auto account = make_account(100);
  EXPECT_EQ(account->name(), "stage 2");
  EXPECT_EQ(account->limit_bytes(), 100);
  expect_bytes(*account, 0, 0);
}

TEST(MemoryAccountTest, RefusesANegativeLimit) {
  try {
    make_account(-1);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("stage 2 is -1 bytes"));
  }
}

TEST(MemoryAccountTest, CountsTheBytesAskedForAndNoMore) {
  const auto account = make_account();
  const MemoryScope scope(account);
  std::vector<torch::Tensor> tensors;
  std::int64_t expected = 0;
  for (std::int64_t bytes = 1; bytes < 300'000; bytes += bytes / 2 + 1) {
    tensors.push_back(make_bytes(bytes));
    expected += bytes;
    EXPECT_EQ(account->live_bytes(), expected);
  }
}

TEST(MemoryAccountTest, ReturnsToExactlyZeroWhenEverythingIsFreed) {
  const auto account = make_account();
  {
    const MemoryScope scope(account);
    const torch::Tensor a = make_bytes(1000);
    const torch::Tensor b = torch::empty({3, 5}, torch::kFloat64);
    EXPECT_EQ(account->live_bytes(), 1120);
  }
  expect_bytes(*account, 0, 1120);
}

TEST(MemoryAccountTest, TakesNothingForATensorWithoutElements) {
  const auto account = make_account();
  const MemoryScope scope(account);
  torch::Tensor empty = torch::empty({0, 7});
  EXPECT_EQ(account->live_bytes(), 0);
  transfer(empty, make_account());
  empty.resize_({2, 7});
  EXPECT_EQ(account->live_bytes(), 56);
}

TEST(MemoryAccountTest, IsBookedOffAfterTheScopeHasEnded) {
  const auto account = make_account();
  torch::Tensor tensor = make_bytes_on(account, 1000);
  EXPECT_EQ(account->live_bytes(), 1000);
  tensor.reset();
  EXPECT_EQ(account->live_bytes(), 0);
}

TEST(MemoryAccountTest, IsBookedOffByAThreadThatKnowsNothingOfIt) {
  const auto account = make_account();
  torch::Tensor tensor = make_bytes_on(account, 1000);
  std::thread([tensor = std::move(tensor)]() mutable { tensor.reset(); }).join();
  expect_bytes(*account, 0, 1000);
}

TEST(MemoryAccountTest, IsBookedOffTheAccountItWasBookedOnWhateverScopeIsOpen) {
  const auto account = make_account();
  const auto other = make_account();
  torch::Tensor tensor = make_bytes_on(account, 1000);
  const MemoryScope scope(other);
  tensor.reset();
  EXPECT_EQ(account->live_bytes(), 0);
  expect_bytes(*other, 0, 0);
}

TEST(MemoryAccountTest, OutlivesItsOwnersAsLongAsMemoryIsBookedOnIt) {
  auto account = make_account();
  const std::weak_ptr<MemoryAccount> observer = account;
  torch::Tensor tensor = make_bytes_on(account, 1000);
  account.reset();
  ASSERT_FALSE(observer.expired());
  EXPECT_EQ(observer.lock()->live_bytes(), 1000);
  tensor.fill_(1);
  tensor.reset();
  EXPECT_TRUE(observer.expired());
}

TEST(MemoryAccountTest, KeepsThePeakUntilItIsReset) {
  const auto account = make_account();
  const MemoryScope scope(account);
  torch::Tensor kept = make_bytes(100);
  make_bytes(1000);
  make_bytes(500);
  expect_bytes(*account, 100, 1100);
  account->reset_peak();
  expect_bytes(*account, 100, 100);
  kept.reset();
  expect_bytes(*account, 0, 100);
  make_bytes(500);
  expect_bytes(*account, 0, 500);
}

TEST(MemoryAccountTest, KeepsItsDataAlignedToCacheLines) {
  const MemoryScope scope(make_account());
  std::vector<torch::Tensor> tensors;
  for (std::int64_t bytes = 1; bytes < 5000; ++bytes) {
    tensors.push_back(make_bytes(bytes));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(tensors.back().data_ptr()) % 64, 0U) << bytes;
    tensors.back().fill_(255);
  }
}

TEST(MemoryScopeTest, BooksNothingOutsideItself) {
  const auto account = make_account();
  torch::Tensor before = make_bytes(1000);
  { const MemoryScope scope(account); }
  const torch::Tensor after = make_bytes(1000);
  {
    const MemoryScope scope(account);
    before.reset();
  }
  expect_bytes(*account, 0, 0);
}

TEST(MemoryScopeTest, BooksNothingOfOtherThreads) {
  const auto account = make_account();
  const MemoryScope scope(account);
  torch::Tensor tensor;
  std::thread([&] { tensor = make_bytes(1000); }).join();
  tensor.reset();
  expect_bytes(*account, 0, 0);
}

TEST(MemoryScopeTest, NestsAndTheInnerOneCounts) {
  const auto outer = make_account();
  const auto inner = make_account();
  std::vector<torch::Tensor> tensors;
  const MemoryScope outer_scope(outer);
  tensors.push_back(make_bytes(1));
  {
    const MemoryScope inner_scope(inner);
    tensors.push_back(make_bytes(20));
    {
      const MemoryScope outer_again(outer);
      tensors.push_back(make_bytes(300));
    }
    {
      const MemoryScope nobody(nullptr);
      tensors.push_back(make_bytes(4000));
    }
    tensors.push_back(make_bytes(50'000));
  }
  tensors.push_back(make_bytes(600'000));
  EXPECT_EQ(outer->live_bytes(), 600'301);
  EXPECT_EQ(inner->live_bytes(), 50'020);
}

TEST(MemoryScopeTest, CountsAStorageOnceHoweverManyViewsItHas) {
  const auto account = make_account();
  torch::Tensor view;
  {
    const MemoryScope scope(account);
    const torch::Tensor base = torch::empty({10, 10}, torch::kFloat32);
    view = base.slice(0, 2, 3).t().detach();
    const torch::Tensor alias = base.view({100});
    EXPECT_EQ(account->live_bytes(), 400);
  }
  EXPECT_EQ(account->live_bytes(), 400);
  view.reset();
  expect_bytes(*account, 0, 400);
}

TEST(MemoryScopeTest, CountsWhatAnOperationMakes) {
  const auto account = make_account();
  const torch::Tensor a = torch::ones({100}, torch::kFloat32);
  const MemoryScope scope(account);
  const torch::Tensor joined = torch::cat({a, a, a});
  EXPECT_EQ(account->live_bytes(), 1200);
  EXPECT_EQ(joined.sum().item<float>(), 300);
  EXPECT_EQ(account->live_bytes(), 1200);
}

TEST(MemoryScopeTest, FollowsAResize) {
  const auto account = make_account();
  const auto other = make_account();
  torch::Tensor tensor = make_bytes_on(account, 1000);
  tensor.fill_(7);
  {
    const MemoryScope scope(other);
    tensor.resize_({500});  // keeps the storage
    EXPECT_EQ(account->live_bytes(), 1000);
    tensor.resize_({4000});
    EXPECT_EQ(account->live_bytes(), 0);
    expect_bytes(*other, 4000, 4000);
  }
  EXPECT_EQ(tensor.slice(0, 0, 500).sum().item<std::int64_t>(), 3500);
  tensor.resize_({5000});
  EXPECT_EQ(other->live_bytes(), 0);
}

TEST(MemoryLimitTest, ThrowsAnErrorWithAllNumbersAndLeavesTheAccountAsItWas) {
  const auto account = make_account(1000);
  const MemoryScope scope(account);
  const torch::Tensor kept = make_bytes(400);
  for (const std::int64_t bytes : {std::int64_t{601}, std::int64_t{5000}, std::int64_t{1} << 61}) {
    try {
      make_bytes(bytes);
      FAIL() << "no error";
    } catch (const OutOfMemoryError& error) {
      EXPECT_EQ(error.account(), "stage 2");
      EXPECT_EQ(error.requested_bytes(), bytes);
      EXPECT_EQ(error.live_bytes(), 400);
      EXPECT_EQ(error.limit_bytes(), 1000);
      EXPECT_THAT(error.what(), HasSubstr("stage 2: out of memory: " + std::to_string(bytes) +
                                          " bytes requested, 400 bytes live, limit 1000 bytes"));
    }
    expect_bytes(*account, 400, 400);
  }
}

TEST(MemoryLimitTest, CanBeFilledToTheLastByteAndAgain) {
  const auto account = make_account(1000);
  const MemoryScope scope(account);
  torch::Tensor tensor = make_bytes(1000);
  EXPECT_THROW(make_bytes(1), OutOfMemoryError);
  tensor.reset();
  tensor = make_bytes(1000);
  expect_bytes(*account, 1000, 1000);
}

TEST(MemoryLimitTest, LeavesATensorThatCannotGrowAsItWas) {
  const auto account = make_account(1000);
  const MemoryScope scope(account);
  torch::Tensor tensor = make_bytes(600);
  tensor.fill_(1);
  EXPECT_THROW(tensor.resize_({700}), OutOfMemoryError);  // old and new at the same time
  expect_bytes(*account, 600, 600);
  EXPECT_EQ(tensor.storage().nbytes(), 600U);
}

TEST(MemoryLimitTest, StopsABackwardPassAndEverythingIsFreed) {
  const auto account = make_account(100'000);
  torch::Tensor weight = torch::ones({100, 100}).requires_grad_();
  {
    const MemoryScope scope(account);
    const torch::Tensor loss = weight.exp().exp().sum();  // 80,004 bytes; the gradients need more
    EXPECT_THROW(loss.backward(), OutOfMemoryError);
  }
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(account->live_bytes(), 0);
  EXPECT_LE(account->peak_bytes(), 100'000);
}

TEST(MemoryLimitTest, LeavesTheAccountAsItWasIfTheSystemHasNoMemory) {
  const auto account = make_account();
  const MemoryScope scope(account);
  EXPECT_ANY_THROW(make_bytes(std::int64_t{1} << 61));
  EXPECT_ANY_THROW(c10::GetCPUAllocator()->allocate(std::numeric_limits<std::size_t>::max()));
  EXPECT_ANY_THROW(c10::GetCPUAllocator()->allocate(std::numeric_limits<std::int64_t>::max()));
  expect_bytes(*account, 0, 0);
}

TEST(AccountingAllocatorTest, ServesRawMemory) {
  const auto account = make_account();
  const MemoryScope scope(account);
  void* const memory = c10::GetCPUAllocator()->raw_allocate(1000);
  EXPECT_EQ(account->live_bytes(), 1000);
  c10::GetCPUAllocator()->raw_deallocate(memory);
  EXPECT_EQ(account->live_bytes(), 0);
  c10::GetCPUAllocator()->raw_deallocate(c10::GetCPUAllocator()->raw_allocate(0));
  expect_bytes(*account, 0, 1000);
}

// As weights in oneDNN's layout do that are older than the first account.
TEST(AccountingAllocatorTest, FreesRawMemoryThatItDidNotAllocate) {
  const auto account = make_account();
  const MemoryScope scope(account);
  for (std::size_t bytes = 1; bytes < 10'000'000; bytes += bytes / 8 + 1) {
    make_bytes(static_cast<std::int64_t>(bytes));  // leaves a header in freed memory
    void* const memory = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    c10::GetCPUAllocator()->raw_deallocate(memory);
  }
  EXPECT_EQ(account->live_bytes(), 0);
}

TEST(AccountingAllocatorTest, HandsOutNoDataAtTheStartOfAPage) {
  const auto account = make_account();
  std::vector<torch::Tensor> tensors;
  for (int count = 0; count < 5000; ++count) {
    tensors.push_back(make_bytes_on(account, 64));
    ASSERT_NE(reinterpret_cast<std::uintptr_t>(tensors.back().data_ptr()) % 4096, 0U);
  }
  tensors.clear();
  EXPECT_EQ(account->live_bytes(), 0);
}

TEST(TransferTest, MovesAStorageWithAllItsViewsToAnotherAccount) {
  const auto from = make_account();
  const auto to = make_account();
  torch::Tensor tensor = make_bytes_on(from, 1000);
  transfer(tensor.slice(0, 10, 20), to);
  expect_bytes(*from, 0, 1000);
  expect_bytes(*to, 1000, 1000);
  transfer(tensor, to);
  expect_bytes(*to, 1000, 1000);
  tensor.reset();
  expect_bytes(*from, 0, 1000);
  expect_bytes(*to, 0, 1000);
}

TEST(TransferTest, LetsGoOfTheOldAccountAndKeepsTheNewOne) {
  auto from = make_account();
  auto to = make_account();
  const std::weak_ptr<MemoryAccount> old_account = from;
  const std::weak_ptr<MemoryAccount> new_account = to;
  torch::Tensor tensor = make_bytes_on(from, 1000);
  transfer(tensor, to);
  from.reset();
  to.reset();
  EXPECT_TRUE(old_account.expired());
  EXPECT_FALSE(new_account.expired());
  tensor.reset();
  EXPECT_TRUE(new_account.expired());
}

TEST(TransferTest, BooksOnAndOffMemoryOfNobody) {
  const auto account = make_account();
  const torch::Tensor tensor = make_bytes(1000);
  transfer(tensor, account);
  EXPECT_EQ(account->live_bytes(), 1000);
  transfer(tensor, nullptr);
  EXPECT_EQ(account->live_bytes(), 0);
}

TEST(TransferTest, DoesNothingForForeignMemory) {
  const auto account = make_account();
  std::array<float, 4> values = {1, 2, 3, 4};
  transfer(torch::from_blob(values.data(), {4}), account);
  transfer(torch::Tensor(), account);
  transfer(torch::eye(3).to_sparse(), account);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 40, c10::GetDefaultCPUAllocator());
  transfer(torch::empty({0}).set_(storage), account);
  expect_bytes(*account, 0, 0);
}

TEST(TransferTest, PastTheLimitThrowsAndChangesNothing) {
  const auto from = make_account(1000);
  const auto to = make_account(999);
  const torch::Tensor tensor = make_bytes_on(from, 1000);
  EXPECT_THROW(transfer(tensor, to), OutOfMemoryError);
  expect_bytes(*from, 1000, 1000);
  expect_bytes(*to, 0, 0);
  transfer(tensor, from);
  expect_bytes(*from, 1000, 1000);
}

TEST(TransferTest, OfOneStorageByManyThreadsBooksItOnExactlyOneAccount) {
  std::vector<std::shared_ptr<MemoryAccount>> accounts;
  for (int account = 0; account < 4; ++account) accounts.push_back(make_account());
  torch::Tensor tensor = make_bytes_on(accounts[0], 1000);
  std::atomic<int> num_started{0};
  std::vector<std::thread> threads;
  for (const auto& account : accounts) {
    threads.emplace_back([&accounts, &num_started, account, tensor] {
      ++num_started;
      while (num_started < 4) std::this_thread::yield();
      for (int round = 0; round < 300'000; ++round) {
        transfer(tensor, account);
        transfer(tensor, accounts[round % 4]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::int64_t live_bytes = 0;
  for (const auto& account : accounts) live_bytes += account->live_bytes();
  EXPECT_EQ(live_bytes, 1000);
  tensor.reset();
  for (const auto& account : accounts) EXPECT_EQ(account->live_bytes(), 0);
}

// Each thread allocates on the account of its own and on a shared one with a limit, passes tensors around and frees
// those of the others.
TEST(MemoryAccountTest, IsExactWithFourThreadsAtIt) {
  constexpr int kThreads = 4;
  constexpr std::int64_t kLimit = 200'000;
  const auto shared = make_account(kLimit);
  std::array<std::shared_ptr<MemoryAccount>, kThreads> own;
  for (auto& account : own) account = make_account();
  std::mutex mutex;
  std::vector<torch::Tensor> exchange(32);
  std::array<int, kThreads> refused{};
  const auto work = [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int round = 0; round < 5000; ++round) {
      torch::Tensor tensor;
      try {
        tensor = make_bytes_on(random() % 2 == 0 ? shared : own[thread], 1 + random() % 20'000);
        if (random() % 4 == 0) transfer(tensor, own[random() % kThreads]);
        if (random() % 4 == 0) transfer(tensor, shared);
      } catch (const OutOfMemoryError& error) {
        ++refused[thread];
        EXPECT_EQ(error.limit_bytes(), kLimit);
      }
      EXPECT_LE(shared->live_bytes(), kLimit);
      if (round % 100 == 0) own[thread]->reset_peak();
      const std::lock_guard<std::mutex> lock(mutex);
      std::swap(exchange[random() % exchange.size()], tensor);
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();

  std::int64_t expected = 0;
  for (const torch::Tensor& tensor : exchange) {
    if (tensor.defined()) expected += static_cast<std::int64_t>(tensor.storage().nbytes());
  }
  std::int64_t live_bytes = shared->live_bytes();
  for (const auto& account : own) live_bytes += account->live_bytes();
  EXPECT_EQ(live_bytes, expected);
  EXPECT_LE(shared->peak_bytes(), kLimit);
  EXPECT_GT(refused[0] + refused[1] + refused[2] + refused[3], 0);
  exchange.clear();
  EXPECT_EQ(shared->live_bytes(), 0);
  for (const auto& account : own) EXPECT_EQ(account->live_bytes(), 0);
}

// Forward, backward and update, twice: what remains is the gradients, and nothing without them.
void expect_exact_recovery(torch::nn::Sequential model, const torch::Tensor& input) {
  const auto account = make_account();
  std::int64_t parameter_bytes = 0;
  for (const torch::Tensor& parameter : model->parameters()) parameter_bytes += parameter.numel() * 4;
  for (int step = 0; step < 2; ++step) {
    {
      const MemoryScope scope(account);
      model->forward(input).pow(2).mean().backward();
      EXPECT_EQ(account->live_bytes(), parameter_bytes);
    }
    for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    EXPECT_EQ(account->live_bytes(), 0);
    EXPECT_GT(account->peak_bytes(), parameter_bytes);
  }
}

TEST(MemoryScopeTest, IsExactForConvolutionsForwardAndBackward) {
  expect_exact_recovery(
      torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)), torch::nn::ReLU(),
                            torch::nn::MaxPool2d(2), torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 16, 5).stride(2))),
      torch::randn({4, 16, 24, 24}));
}

TEST(MemoryScopeTest, IsExactForLinearLayersForwardAndBackward) {
  expect_exact_recovery(
      torch::nn::Sequential(torch::nn::Linear(64, 128), torch::nn::LayerNorm(std::vector<std::int64_t>{128}),
                            torch::nn::GELU(), torch::nn::Dropout(0.5), torch::nn::Linear(128, 10)),
      torch::randn({32, 64}));
}

TEST(MemoryScopeTest, CountsMemoryInTheLayoutOfOneDnn) {
  if (!at::hasMKLDNN()) GTEST_SKIP() << "this libtorch has no oneDNN";
  const auto account = make_account();
  const torch::Tensor dense = torch::randn({2, 16, 8, 8});
  torch::Tensor opaque;
  {
    const MemoryScope scope(account);
    opaque = dense.to_mkldnn();
    EXPECT_GE(account->live_bytes(), dense.numel() * 4);
  }
  transfer(opaque, make_account());
  EXPECT_TRUE(test::same_bits(opaque.to_dense(), dense));
  opaque.reset();
  EXPECT_EQ(account->live_bytes(), 0);
}

torch::Tensor make_meta_bytes(std::int64_t bytes) {
  return torch::empty({bytes}, torch::TensorOptions(torch::kMeta).dtype(torch::kUInt8));
}

TEST(MetaMemoryTest, IsBookedAsIfItWereThere) {
  const auto account = make_account();
  const MemoryScope scope(account);
  torch::Tensor kept = make_meta_bytes(100);
  make_meta_bytes(std::int64_t{1} << 50);
  expect_bytes(*account, 100, 100 + (std::int64_t{1} << 50));
  const torch::Tensor view = kept.slice(0, 2, 3);
  kept.reset();
  EXPECT_EQ(account->live_bytes(), 100);
  EXPECT_EQ(view.storage().data_ptr().get(), nullptr);
}

TEST(MetaMemoryTest, IsBookedOffTheAccountItWasBookedOnByAnyThread) {
  auto account = make_account();
  const std::weak_ptr<MemoryAccount> observer = account;
  torch::Tensor tensor;
  {
    const MemoryScope scope(account);
    tensor = make_meta_bytes(1000);
  }
  const torch::Tensor outside = make_meta_bytes(1000);
  EXPECT_EQ(account->live_bytes(), 1000);
  account.reset();
  EXPECT_FALSE(observer.expired());
  std::thread([tensor = std::move(tensor)]() mutable { tensor.reset(); }).join();
  EXPECT_TRUE(observer.expired());
}

TEST(MetaMemoryTest, HasTheLimitOfTheAccount) {
  const auto account = make_account(1000);
  const MemoryScope scope(account);
  const torch::Tensor kept = make_meta_bytes(400);
  EXPECT_THROW(make_meta_bytes(601), OutOfMemoryError);
  expect_bytes(*account, 400, 400);
  make_meta_bytes(600);
  expect_bytes(*account, 400, 1000);
}

TEST(MetaMemoryTest, CanBeTransferred) {
  const auto from = make_account();
  const auto to = make_account(1000);
  torch::Tensor tensor = make_meta_bytes(1000);
  transfer(tensor, from);
  EXPECT_EQ(from->live_bytes(), 1000);
  transfer(tensor.slice(0, 10, 20), to);
  EXPECT_EQ(from->live_bytes(), 0);
  EXPECT_EQ(to->live_bytes(), 1000);
  EXPECT_THROW(transfer(make_meta_bytes(1), to), OutOfMemoryError);
  tensor.reset();
  EXPECT_EQ(to->live_bytes(), 0);
  transfer(make_meta_bytes(0), to);
  EXPECT_EQ(to->live_bytes(), 0);
}

TEST(MetaMemoryTest, OfARunIsThatOfTheCpu) {
  const auto run = [](torch::Device device) {
    const auto account = make_account();
    const torch::Tensor weight = torch::ones({8, 8}, device).requires_grad_();
    const MemoryScope scope(account);
    const torch::Tensor loss = torch::matmul(torch::ones({16, 8}, device), weight).exp().exp().sum();
    std::vector<std::int64_t> bytes = {account->live_bytes(), account->peak_bytes()};
    account->reset_peak();
    loss.backward();
    bytes.push_back(account->live_bytes());
    bytes.push_back(account->peak_bytes());
    return bytes;
  };
  EXPECT_EQ(run(torch::kMeta), run(torch::kCPU));
}

}  // namespace
}  // namespace gpipe
