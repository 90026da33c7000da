// The same options from JSON, from TOML and from the command line, and every refusal with its place.
#include "cli/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>

#include "gpipe/error.h"
#include "tests/os/temporary_folder.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct Program {
  CLI::App app{"", "program"};
  int stages = 1;
  double lr = 0;
  bool augment = false;
  std::string model = "none";
  std::vector<std::string> balance;
  int beam = 1;

  Program() {
    add_config_option(app);
    app.fallthrough();
    app.add_option("--stages,-k", stages);
    app.add_option("--lr", lr);
    app.add_flag("--augment", augment);
    app.add_option("--model", model);
    app.add_option("--balance", balance);
    app.add_subcommand("translate")->add_option("--beam", beam);
    app.add_subcommand("image");
  }

  void run(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
  }
};

class ConfigFile : public ::testing::Test {
 protected:
  // Reads `text` from a file, with further arguments.
  void read(Program& program, const std::string& text, std::vector<std::string> arguments = {}) {
    arguments.push_back("--config");
    arguments.push_back(folder_.write("file", text));
    program.run(arguments);
  }

  std::string refusal(const std::string& text, std::int64_t line, std::vector<std::string> arguments = {}) {
    Program program;
    try {
      read(program, text, std::move(arguments));
    } catch (const ParseError& error) {
      EXPECT_EQ(error.line(), line) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("'" + folder_.path("file") + "': "));
      EXPECT_THAT(error.what(), HasSubstr(line > 0 ? "line " + std::to_string(line) + ": " : ""));
      return error.what();
    }
    return "not refused";
  }

  const test::TemporaryFolder folder_;
};

constexpr const char* kJson = R"({
  "stages": 4, "lr": 1e-3,
  "augment": true,
  "model": "amoebanet # \"D\"",
  "balance": [1, 2, 3]
})";

TEST_F(ConfigFile, IsReadAsJson) {
  Program program;
  read(program, kJson);
  EXPECT_EQ(program.stages, 4);
  EXPECT_EQ(program.lr, 1e-3);
  EXPECT_TRUE(program.augment);
  EXPECT_EQ(program.model, "amoebanet # \"D\"");
  EXPECT_THAT(program.balance, ElementsAre("1", "2", "3"));
}

TEST_F(ConfigFile, IsReadAsToml) {
  Program program;
  read(program,
       "# a comment\nstages = 4\nlr = 1e-3 # another\naugment = true\nmodel = \"amoebanet d\"\nbalance = [1, 2, 3]\n");
  EXPECT_EQ(program.stages, 4);
  EXPECT_EQ(program.lr, 1e-3);
  EXPECT_TRUE(program.augment);
  EXPECT_EQ(program.model, "amoebanet d");
  EXPECT_THAT(program.balance, ElementsAre("1", "2", "3"));
}

TEST_F(ConfigFile, TheCommandLineWins) {
  Program program;
  read(program, kJson, {"--stages", "2", "--model=resnet"});
  EXPECT_EQ(program.stages, 2);
  EXPECT_EQ(program.model, "resnet");
  EXPECT_EQ(program.lr, 1e-3);
}

TEST_F(ConfigFile, FalseTurnsAFlagOff) {
  Program program;
  program.augment = true;
  read(program, R"({"augment": false})");
  EXPECT_FALSE(program.augment);
}

TEST_F(ConfigFile, MayBeEmpty) {
  for (const char* text : {"", "\n", "{}", " {\n}\n", "# nothing\n"}) {
    Program program;
    read(program, text);
    EXPECT_EQ(program.stages, 1) << text;
  }
}

TEST_F(ConfigFile, HasTheOptionsOfTheCommandThatWasNamed) {
  for (const char* text : {R"({"beam": 5, "stages": 3})", "beam = 5\nstages = 3\n"}) {
    Program program;
    read(program, text, {"translate"});
    EXPECT_EQ(program.beam, 5);
    EXPECT_EQ(program.stages, 3);
  }
  EXPECT_THAT(refusal("beam = 5\n", 1, {"image"}), HasSubstr("'beam' is no option"));
}

TEST_F(ConfigFile, AnswersAnUnknownNameWithTheNearestOptionAndItsLine) {
  EXPECT_THAT(refusal("{\n \"lr\": 1,\n \"stagess\": 4\n}", 3),
              HasSubstr("'stagess' is no option; did you mean 'stages'?"));
  EXPECT_THAT(refusal("lr = 1\nstage = 4\n", 2), HasSubstr("'stage' is no option; did you mean 'stages'?"));
  EXPECT_THAT(refusal("{\"frobnicate\": 1}", 1),
              AllOf(HasSubstr("'frobnicate'"), HasSubstr("without the dashes"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(refusal("{\"--lr\": 1}", 1), HasSubstr("'--lr' is no option"));
}

TEST_F(ConfigFile, HasNoConfigurationOfItsOwn) {
  EXPECT_THAT(refusal("{\"config\": \"x\"}", 1), HasSubstr("'config' is no option"));
  EXPECT_THAT(refusal("help = true\n", 1), HasSubstr("'help' is no option"));
}

TEST_F(ConfigFile, NamesThePlaceOfASyntaxError) {
  EXPECT_THAT(refusal("{\n \"lr\": 1,\n \"stages\" 4\n}", 3), HasSubstr("not JSON: syntax error"));
  EXPECT_THAT(refusal("{\"lr\": 1", 1), HasSubstr("not JSON: syntax error"));
  EXPECT_THAT(refusal("{\"lr\": 1} x", 1), HasSubstr("not JSON: syntax error"));
  EXPECT_THAT(refusal("some text\n", 0), HasSubstr("'some text' is no option"));
}

// Before its version 2.4, CLI11 takes a # within quotes for a comment.
TEST_F(ConfigFile, ReadsAQuotedHashAsItIsOrRefusesIt) {
  const std::string text = "lr = 1\nmodel = \"a#b\"\n";
  const std::string refused = refusal(text, 2);
  if (refused != "not refused") {
    EXPECT_THAT(refused, HasSubstr("begins with a quote that does not end"));
    return;
  }
  Program program;
  read(program, text);
  EXPECT_EQ(program.model, "a#b");
}

TEST_F(ConfigFile, RefusesANameGivenTwice) {
  EXPECT_THAT(refusal("{\"lr\": 1, \"lr\": 2}", 0), HasSubstr("\"lr\" is given twice"));
  EXPECT_THAT(refusal("lr = 1\nlr = 2\n", 2), HasSubstr("'lr' is given twice"));
}

TEST_F(ConfigFile, RefusesValuesThatAreNone) {
  EXPECT_THAT(refusal("{\"lr\": null}", 0), HasSubstr("\"lr\" is null; expected a number"));
  EXPECT_THAT(refusal("{\"lr\": {}}", 0), HasSubstr("\"lr\" is an object"));
  EXPECT_THAT(refusal("{\"balance\": [1, [2]]}", 0), HasSubstr("\"balance\" is an array"));
  EXPECT_THAT(refusal("{\"balance\": []}", 0), HasSubstr("is an empty list"));
}

TEST_F(ConfigFile, RefusesJsonThatIsNoObject) {
  for (const char* text : {"5", "[]", "\"x\"", "null", "true", "[1, 2]\n", " 5\n", "\"lr = 1\""}) {
    EXPECT_THAT(refusal(text, 1), HasSubstr("a configuration in JSON is one object, such as {\"stages\": 4}")) << text;
  }
  EXPECT_THAT(refusal("[]", 1), HasSubstr("this is a JSON array"));
}

TEST_F(ConfigFile, RefusesLinesThatAreNoOption) {
  EXPECT_THAT(refusal("lr = 1\n5\n", 2), HasSubstr("'5' is no option"));
  EXPECT_THAT(refusal("[]\nlr = 1\n", 1), HasSubstr("'[]' is no option"));
  Program program;
  read(program, "balance = [1,\n2,\n3\n]\nlr = 1e-3\n");
  EXPECT_THAT(program.balance, ElementsAre("1", "2", "3"));
}

TEST_F(ConfigFile, ThatDoesNotEndIsRefusedWithTheLimit) {
  std::filesystem::create_symlink("/dev/zero", folder_.path("endless"));
  Program program;
  EXPECT_THAT(
      [&] {
        program.run({"--config", folder_.path("endless")});
      },
      ThrowsMessage<ParseError>(AllOf(HasSubstr(folder_.path("endless")), HasSubstr("holds more than 16 MiB"))));
}

TEST_F(ConfigFile, MayBeAPipeOfTheShell) {
  const std::string pipe = folder_.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  auto writer = std::async(std::launch::async, [&] { std::ofstream(pipe) << "stages = 7\n"; });
  Program program;
  program.run({"--config", pipe});
  writer.get();
  EXPECT_EQ(program.stages, 7);
}

TEST_F(ConfigFile, RefusesSections) {
  EXPECT_THAT(refusal("[translate]\nbeam = 5\n", 0, {"translate"}), HasSubstr("is in a section"));
}

TEST_F(ConfigFile, ThatIsMissingIsSaidSo) {
  Program program;
  EXPECT_THROW(program.run({"--config", folder_.path("absent")}), CLI::FileError);
}

TEST_F(ConfigFile, ValuesAreReadByTheOptions) {
  Program program;
  EXPECT_THROW(read(program, "{\"stages\": \"many\"}"), CLI::ConversionError);
}

}  // namespace
}  // namespace gpipe::cli
