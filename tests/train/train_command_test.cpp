// gpipe train, eval, translate and generate from end to end, on data of a few samples that the tests make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "run_command.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Truly;

std::string idx(const std::vector<int>& dims, const std::string& values) {
  std::string bytes = {0, 0, 8, static_cast<char>(dims.size())};
  for (const int dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dim >> shift);
  }
  return bytes + values;
}

// Fashion-MNIST in small: images whose class can be seen, a bright row that depends on it.
void write_images(const TemporaryFolder& folder, const std::string& prefix, int count) {
  std::mt19937 random(7);
  std::string pixels;
  std::string labels;
  for (int image = 0; image < count; ++image) {
    const int label = image % 10;
    for (int place = 0; place < 28 * 28; ++place) {
      pixels += static_cast<char>(random() % 60 + (place / 28 / 2 == label ? 180 : 0));
    }
    labels += static_cast<char>(label);
  }
  folder.write(prefix + "-images-idx3-ubyte", idx({count, 28, 28}, pixels));
  folder.write(prefix + "-labels-idx1-ubyte", idx({count}, labels));
}

class TrainImage : public ::testing::Test {
 protected:
  TrainImage() {
    write_images(folder_, "train", 64);
    write_images(folder_, "t10k", 20);
  }

  Outcome train(const Arguments& more) const {
    Arguments arguments = {"train",           "image",        "--data-dir", folder_.path(""),  "--model",
                           "resnet-cifar:20", "--batch-size", "16",         "--micro-batches", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  }

  const TemporaryFolder folder_;
};

// All float32 values of a safetensors file.
std::vector<float> weights_in(const std::string& path) {
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::vector<float> values;
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || entry.at("dtype") != "F32") continue;
    const auto begin = entry.at("data_offsets")[0].get<std::size_t>();
    const auto end = entry.at("data_offsets")[1].get<std::size_t>();
    const std::size_t first = values.size();
    values.resize(first + (end - begin) / sizeof(float));
    std::memcpy(values.data() + first, bytes.data() + 8 + length + begin, end - begin);
  }
  return values;
}

std::string value_of(const std::string& out, const std::string& name) {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, name.size(), name) == 0) return line.substr(line.find_first_not_of(" :", name.size()));
  }
  return "";
}

TEST_F(TrainImage, TheWeightsAndTheAccuracyAreTheSameForEveryNumberOfStages) {
  std::string weights;
  std::string accuracy;
  for (const char* stages : {"1", "2", "4"}) {
    const std::string file = folder_.path(std::string("k") + stages + ".safetensors");
    const Outcome outcome = train({"--stages", stages, "--steps", "3", "--augment", "--save", file});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("where the time went"), HasSubstr("peak")));
    ASSERT_FALSE(read_file(file).empty());
    if (weights.empty()) {
      weights = read_file(file);
      accuracy = value_of(outcome.out, "test_accuracy");
      EXPECT_THAT(accuracy, ContainsRegex("^[0-9.]+ % of 20 images"));
    }
    EXPECT_TRUE(read_file(file) == weights) << stages << " stages";
    EXPECT_EQ(value_of(outcome.out, "test_accuracy"), accuracy);
  }
  const Outcome outcome =
      run_gpipe({"eval", "--weights", folder_.path("k1.safetensors"), "--data-dir", folder_.path("")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(value_of(outcome.out, "test_accuracy"), accuracy);
}

TEST_F(TrainImage, WritesMetricsTraceAndEventFiles) {
  const Outcome outcome = train({"--stages", "2", "--balance", "30,", "--steps", "1"});
  EXPECT_EQ(outcome.exit_code, 2);
  const Outcome good = train({"--stages", "2", "--steps", "3", "--schedule", "gpipe", "--recompute", "always",
                              "--metrics", folder_.path("metrics.jsonl"), "--trace", folder_.path("trace.json"),
                              "--tensorboard", folder_.path("events")});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  std::istringstream lines(read_file(folder_.path("metrics.jsonl")));
  int num_steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("loss")) continue;
    EXPECT_EQ(json.at("step"), ++num_steps);
  }
  EXPECT_EQ(num_steps, 3);
  EXPECT_GT(nlohmann::json::parse(read_file(folder_.path("trace.json"))).at("traceEvents").size(), 20U);
  EXPECT_FALSE(std::filesystem::is_empty(folder_.path("events")));
}

TEST_F(TrainImage, NeverOverwritesUnlessForced) {
  const std::string file = folder_.write("mine", "precious");
  for (const char* option : {"--save", "--trace", "--metrics"}) {
    const Outcome outcome = train({"--steps", "1", option, file});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("mine"), HasSubstr("--force")));
  }
  EXPECT_EQ(read_file(file), "precious");
  EXPECT_EQ(train({"--steps", "1", "--save", file, "--force"}).exit_code, 0);
  EXPECT_NE(read_file(file), "precious");
}

TEST_F(TrainImage, ALossThatIsNotFiniteEndsItWithTheLastGoodWeights) {
  const std::string file = folder_.path("last.safetensors");
  const Outcome outcome = train({"--stages", "2", "--steps", "30", "--optimizer", "sgd", "--lr", "1e25", "--warmup",
                                 "0", "--clip", "0", "--save", file});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_THAT(outcome.out + outcome.err, AllOf(HasSubstr("not finite"), HasSubstr("--lr")));
  EXPECT_THAT(weights_in(file), AllOf(Not(IsEmpty()), Each(Truly([](float value) { return std::isfinite(value); }))));
}

TEST_F(TrainImage, AnInterruptEndsTheStepAndKeepsTheWeights) {
  const std::string file = folder_.path("interrupted.safetensors");
  const Outcome outcome = run_gpipe_with_signal(
      {"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:20", "--batch-size", "16", "--stages",
       "2", "--micro-batches", "4", "--steps", "100000", "--save", file},
      "step 1/", SIGINT);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("interrupted after step"), HasSubstr("interrupted.safetensors")));
  EXPECT_THAT(weights_in(file), Not(IsEmpty()));
}

TEST_F(TrainImage, OptionsMayComeFromAFile) {
  const std::string json =
      folder_.write("options.json", R"({"stages": 2, "steps": 1, "schedule": "gpipe", "balance": [30, 47]})");
  const Outcome outcome = train({"--config", json});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 stages, 4 micro-batches, gpipe"));
  const Outcome bad = train({"--config", folder_.write("bad.json", R"({"stagse": 2})")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("stages"));
}

TEST_F(TrainImage, WeightsOfAnotherModelAreRefused) {
  const std::string file = folder_.path("r20.safetensors");
  ASSERT_EQ(train({"--steps", "1", "--save", file}).exit_code, 0);
  const Outcome outcome = run_gpipe({"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:32",
                                     "--batch-size", "16", "--steps", "1", "--weights", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("another model"));
  const std::string bytes = read_file(file);
  folder_.write("torn.safetensors", bytes.substr(0, bytes.size() / 2));
  const Outcome torn =
      run_gpipe({"eval", "--weights", folder_.path("torn.safetensors"), "--data-dir", folder_.path("")});
  EXPECT_EQ(torn.exit_code, 1);
  EXPECT_THAT(torn.err, HasSubstr("cut short"));
}

TEST_F(TrainImage, BadDataIsOneLineThatSaysWhatToDo) {
  const auto expect_line = [&](const Outcome& outcome, const std::string& what) {
    EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(1, 2));
    EXPECT_THAT(outcome.err, HasSubstr(what));
    EXPECT_THAT(outcome.out, Not(HasSubstr("step")));
  };
  expect_line(
      run_gpipe({"train", "image"}, "", {"GPIPE_DATA_DIR=" + folder_.path("none"), "HOME=" + folder_.path("none")}),
      "scripts/get-data fashion-mnist");
  folder_.write("train-labels-idx1-ubyte", idx({64}, std::string(64, 77)));
  expect_line(train({}), "label 77");
  folder_.write("train-labels-idx1-ubyte", "garbage");
  expect_line(train({}), "train-labels-idx1-ubyte");
  folder_.write("train-labels-idx1-ubyte.gz", std::string("\x1f\x8b\x08\x00\x00\x00", 6));
  expect_line(train({}), "train-labels-idx1-ubyte.gz");
}

TEST(TrainLm, ATextIsLearntAndContinued) {
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 400; ++line) text += "the cat sat on the mat and the dog ran off\n";
  const std::string file = folder.write("text.txt", text);
  const std::string weights = folder.path("lm.safetensors");
  const Outcome outcome = run_gpipe({"train",
                                     "lm",
                                     "--text",
                                     file,
                                     "--model",
                                     "transformer-lm:2,32,64,2",
                                     "--vocabulary",
                                     "275",
                                     "--sequence-length",
                                     "16",
                                     "--batch-size",
                                     "16",
                                     "--stages",
                                     "2",
                                     "--micro-batches",
                                     "4",
                                     "--steps",
                                     "60",
                                     "--lr",
                                     "1e-2",
                                     "--warmup",
                                     "5",
                                     "--save",
                                     weights});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(std::stod(value_of(outcome.out, "dev_perplexity")), 3);
  const Outcome evaluated = run_gpipe({"eval", "--weights", weights, "--text", file});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(value_of(evaluated.out, "dev_perplexity"), value_of(outcome.out, "dev_perplexity"));
  const Outcome without_text = run_gpipe({"eval", "--weights", weights});
  EXPECT_EQ(without_text.exit_code, 1);
  EXPECT_THAT(without_text.err, HasSubstr("--text"));
  const Arguments generate = {"generate", "--weights", weights,         "--prompt", "the cat",
                              "--tokens", "30",        "--temperature", "0"};
  const Outcome continued = run_gpipe(generate);
  EXPECT_EQ(continued.exit_code, 0) << continued.err;
  EXPECT_THAT(continued.out, AllOf(HasSubstr("the cat sat on the"), HasSubstr("ran of")));
  EXPECT_EQ(run_gpipe(generate).out, continued.out);
  const Outcome wrong = run_gpipe({"translate", "--weights", weights}, "x\n");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("gpipe train translate"));
}

// Pages whose split is decided by their names: with some dozens there are some of each.
void write_help(const TemporaryFolder& folder, int num_pages = 80) {
  const std::vector<std::pair<std::string, std::string>> words = {
      {"Datei", "file"}, {"Tabelle", "table"}, {"Bild", "image"}, {"Seite", "page"}, {"Zeile", "line"}};
  for (int page = 0; page < num_pages; ++page) {
    std::string german;
    std::string english;
    for (std::size_t word = 0; word < words.size(); ++word) {
      const std::string id = "par_id" + std::to_string(word);
      const std::string number = std::to_string(page);
      german += "<p id=\"" + id + "\">Die " + words[word].first + " " + number + " ist offen.</p>";
      english += "<p id=\"" + id + "\">The " + words[word].second + " " + number + " is open.</p>";
    }
    for (const auto& [language, text] : {std::make_pair("de", german), std::make_pair("en-US", english)}) {
      const std::string dir = folder.path(std::string(language) + "/text/shared");
      std::filesystem::create_directories(dir);
      std::ofstream(dir + "/page" + std::to_string(page) + ".html") << "<html><body>" << text << "</body></html>";
    }
  }
}

// So that nothing is kept in the user's own data folder.
Arguments data_in(const TemporaryFolder& folder) { return {"GPIPE_DATA_DIR=" + folder.path("data")}; }

TEST(TrainTranslate, BleuAndTranslationsAreTheSameForEveryNumberOfStages) {
  const TemporaryFolder folder;
  write_help(folder);
  std::string bleu;
  for (const char* stages : {"1", "2"}) {
    const std::string weights = folder.path(std::string("t") + stages + ".safetensors");
    const Outcome outcome = run_gpipe({"train",
                                       "translate",
                                       "--data-dir",
                                       folder.path(""),
                                       "--languages",
                                       "de",
                                       "--model",
                                       "t:1,64,2,32",
                                       "--vocabulary",
                                       "305",
                                       "--max-tokens",
                                       "256",
                                       "--stages",
                                       stages,
                                       "--micro-batches",
                                       "2",
                                       "--steps",
                                       "40",
                                       "--lr",
                                       "5e-3",
                                       "--warmup",
                                       "10",
                                       "--save",
                                       weights},
                                      "", data_in(folder));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(value_of(outcome.out, "bleu_de"), HasSubstr("sentences"));
    if (bleu.empty()) bleu = value_of(outcome.out, "bleu_de");
    EXPECT_EQ(value_of(outcome.out, "bleu_de"), bleu);
  }
  EXPECT_TRUE(read_file(folder.path("t1.safetensors")) == read_file(folder.path("t2.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("data/libreoffice-help-pairs")));
  const Outcome outcome = run_gpipe({"translate", "--weights", folder.path("t1.safetensors")},
                                    "Die Datei 3 ist offen.\n\nDie Seite 2 ist offen.\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
}

TEST(TrainTranslate, ACorpusWithoutTestPairsIsRefusedBeforeTheTraining) {
  const TemporaryFolder folder;
  write_help(folder, 5);
  const Outcome outcome = run_gpipe({"train", "translate", "--data-dir", folder.path("")}, "", data_in(folder));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("none of its 25 pairs is for test; get whole languages"),
                                 HasSubstr("scripts/get-data libreoffice-help de")));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST(TrainHelp, EveryCommandExplainsItself) {
  for (const Arguments& arguments : {Arguments{"train", "--help"},
                                     {"train", "image", "--help"},
                                     {"train", "lm", "--help"},
                                     {"train", "translate", "--help"},
                                     {"eval", "--help"},
                                     {"translate", "--help"},
                                     {"generate", "--help"}}) {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Usage: gpipe " + arguments.front()));
    EXPECT_LE(longest_line(outcome.out), 100U);
  }
  const Outcome option = run_gpipe({"train", "image", "--stagse", "2"});
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_THAT(option.err, AllOf(HasSubstr("unknown option '--stagse' of 'gpipe train image'"), HasSubstr("--stages")));
  const Outcome task = run_gpipe({"train", "imgae"});
  EXPECT_EQ(task.exit_code, 2);
  EXPECT_THAT(task.err, AllOf(HasSubstr("unknown command 'imgae' of 'gpipe train'"), HasSubstr("'image'")));
}

}  // namespace
}  // namespace gpipe::cli
