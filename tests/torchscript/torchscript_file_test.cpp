// Files that are no TorchScript, or were damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/torchscript/from_torchscript.h"
#include "tests/os/temporary_folder.h"
#include "tests/torchscript/script_modules.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

torch::jit::Module small_network() {
  torch::jit::Module module = test::script_module();
  module.register_module("first", test::script_linear(3, 4));
  module.register_module("norm", test::script_batch_norm(4));
  module.register_module("last", test::script_linear(4, 2));
  module.define(
      "def forward(self, x):\n  return self.last.forward(torch.relu(self.norm.forward(self.first.forward(x))))\n");
  return module;
}

TEST(TorchScriptFile, IsReadAndKeepsItsNames) {
  const test::TemporaryFolder folder;
  small_network().save(folder.path("network.pt"));
  const LayerChain chain = from_torchscript(folder.path("network.pt"));
  ASSERT_GE(chain.size(), 2);
  EXPECT_THAT(chain.weight_names(0), ::testing::ElementsAre("first.weight", "first.bias"));
}

TEST(TorchScriptFile, ThatIsMissingOrNoneIsACheckpointErrorInOneLine) {
  const test::TemporaryFolder folder;
  EXPECT_THAT([&] { from_torchscript(folder.path("missing.pt")); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("missing.pt"), Not(HasSubstr("\n")))));
  const std::string text = folder.write("text.pt", "these are no weights");
  EXPECT_THAT(
      [&] { from_torchscript(text); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr("text.pt"), HasSubstr("torch.jit.save"), Not(HasSubstr("\n")))));
  const std::string nothing = folder.write("nothing.pt", "");
  EXPECT_THROW(from_torchscript(nothing), CheckpointError);
}

// How a process that reads files ends.
enum class End : int { kWell = 0, kOtherException = 40 };

// Reads the damaged files in a process of their own, since libtorch may crash on them. Returns its wait status.
int read_in_child(const test::TemporaryFolder& folder, const std::vector<std::string>& contents) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    for (const std::string& content : contents) {
      const std::string path = folder.write("damaged.pt", content);
      try {
        const LayerChain chain = from_torchscript(path);
        chain.build(0, /*seed=*/0).forward({torch::ones({2, 3})});
      } catch (const Error&) {
      } catch (...) {
        _exit(static_cast<int>(End::kOtherException));
      }
    }
    _exit(static_cast<int>(End::kWell));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(TorchScriptFile, DamagedOnesAreTypedErrorsWhereverLibtorchThrows) {
  at::set_num_threads(1);
  const test::TemporaryFolder folder;
  small_network().save(folder.path("network.pt"));
  const std::string whole = folder.read("network.pt");
  std::mt19937 random(1);
  constexpr int kNumFiles = 1000;
  constexpr int kFilesAChild = 50;
  int num_crashes = 0;
  for (int first = 0; first < kNumFiles; first += kFilesAChild) {
    std::vector<std::string> damaged;
    for (int index = 0; index < kFilesAChild; ++index) {
      damaged.push_back(whole);
      if (index % 2 == 0) damaged.back().resize(random() % whole.size());
      for (unsigned left = index % 2 == 0 ? 0 : 1 + random() % 4; left > 0; --left) {
        damaged.back()[random() % whole.size()] = static_cast<char>(random());
      }
    }
    const int status = read_in_child(folder, damaged);
    ASSERT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(End::kOtherException))
        << "an exception of libtorch's has escaped, among the files from " << first << " on";
    num_crashes += WIFEXITED(status) ? 0 : 1;
  }
  EXPECT_LT(num_crashes, kNumFiles / kFilesAChild / 2) << "libtorch has crashed too often to tell anything";
}

}  // namespace
}  // namespace gpipe
