// Where data sets are looked for, and the command that gets a missing one.
#include "data/data_dir.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <cstdlib>
#include <optional>

#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sets an environment variable, or unsets it, until the end of the test.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  void set(const std::optional<std::string>& value) {
    if (value) {
      setenv(name_, value->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(DataDir, FollowsTheEnvironment) {
  Variable own("GPIPE_DATA_DIR", "/own");
  Variable xdg("XDG_DATA_HOME", "/xdg");
  Variable home("HOME", "/home/somebody");
  EXPECT_EQ(data_dir(), "/own");
  own.set("");
  EXPECT_EQ(data_dir(), "/xdg/gpipe");
  xdg.set(std::nullopt);
  EXPECT_EQ(data_dir(), "/home/somebody/.local/share/gpipe");
  home.set(std::nullopt);
  EXPECT_THAT(refusal([] { data_dir(); }), HasSubstr("set GPIPE_DATA_DIR"));
}

TEST(DataDir, FindsADataSet) {
  const TemporaryFolder folder;
  const Variable own("GPIPE_DATA_DIR", folder.path());
  folder.write("kjv/kjv.txt", "x");
  EXPECT_EQ(find_data_set("kjv"), folder.path("kjv"));
}

TEST(DataDir, SaysHowToGetAMissingDataSet) {
  const TemporaryFolder folder;
  const Variable own("GPIPE_DATA_DIR", folder.path());
  EXPECT_THAT(
      refusal([] { find_data_set("cifar10"); }),
      AllOf(HasSubstr("cifar10: not found in " + folder.path("cifar10")), EndsWith("run gpipe get-data cifar10")));
  EXPECT_THAT(refusal([] { find_data_set("kjv"); }), EndsWith("gpipe get-data kjv"));
}

// As in a folder that must not be read, but for root, too: a link to itself.
TEST(DataDir, SaysWhyItCannotBeRead) {
  const TemporaryFolder folder;
  const Variable own("GPIPE_DATA_DIR", folder.path());
  std::filesystem::create_symlink("kjv", folder.path("kjv"));
  EXPECT_THAT(refusal([] { find_data_set("kjv"); }),
              AllOf(StartsWith(folder.path("kjv") + ": cannot read it: "),
                    EndsWith("; check its permissions and those of its folders")));
  EXPECT_THAT(refusal([&] { file_in(folder.path(), "kjv", "get it"); }), HasSubstr("cannot read it"));
}

TEST(DataDir, SaysWhichFileIsMissing) {
  const TemporaryFolder folder;
  EXPECT_EQ(file_in(folder.path(), folder.write("here", "x").substr(folder.path().size() + 1), "get it"),
            folder.path("here"));
  EXPECT_EQ(refusal([&] { file_in(folder.path(), "gone", "get it"); }), folder.path() + ": no file gone in it; get it");
}

TEST(DataError, TakesTheRemedyOfWhoKnowsTheDataSet) {
  const auto message = [](const std::string& remedy) {
    return refusal([&] { read_with_remedy("get it", [&]() -> int { throw DataError("file", "bad", remedy); }); });
  };
  EXPECT_EQ(message(kFetchAgain), "file: bad; get it");
  EXPECT_EQ(message(std::string("look at it, or ") + kFetchAgain), "file: bad; look at it, or get it");
  EXPECT_EQ(message("check it"), "file: bad; check it");
}

TEST(DataDir, KnowsItsDataSets) {
  try {
    find_data_set("fashion-minst");
    ADD_FAILURE() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("no data set 'fashion-minst' (did you mean fashion-mnist?)"));
  }
}

}  // namespace
}  // namespace gpipe::data
