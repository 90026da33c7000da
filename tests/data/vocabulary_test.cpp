// Vocabularies: trained the same way every time, saved and loaded, text to ids and back.
#include "data/vocabulary.h"

#include <gmock/gmock.h>

#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

// Sentences of made-up words that share their parts.
std::vector<std::string> sentences() {
  const char* parts[] = {"ba", "lor", "mi", "stra", "ten", "vo", "qui", "ned", "ux", "pah"};
  std::mt19937 random(1);
  std::vector<std::string> made;
  for (int sentence = 0; sentence < 500; ++sentence) {
    std::string text;
    for (int word = 0; word < 8; ++word) {
      for (unsigned part = 0; part < 1 + random() % 3; ++part) text += parts[random() % 10];
      text += ' ';
    }
    made.push_back(text);
  }
  return made;
}

VocabularyOptions small_options() {
  VocabularyOptions options;
  options.size = 340;
  options.symbols = {"<2en>", "<2de>"};
  return options;
}

const Vocabulary& small_vocabulary() {
  static const Vocabulary vocabulary = Vocabulary::train(sentences(), small_options());
  return vocabulary;
}

TEST(Vocabulary, GivesTextBackFromItsIds) {
  const Vocabulary& vocabulary = small_vocabulary();
  EXPECT_EQ(vocabulary.size(), 340);
  for (const char* text : {"balor mistra ten", "x", "never seen Ünïcödé 漢字 😀", "balor 12,5 %"}) {
    EXPECT_EQ(vocabulary.decode(vocabulary.encode(text)), text);
  }
  EXPECT_LT(vocabulary.encode("balor mistra tenvo").size(), 10U);
  EXPECT_THAT(vocabulary.encode(""), IsEmpty());
  EXPECT_EQ(vocabulary.decode({}), "");
}

TEST(Vocabulary, HasFixedSpecialIdsAndSymbols) {
  const Vocabulary& vocabulary = small_vocabulary();
  EXPECT_EQ(vocabulary.piece(Vocabulary::kPad), "<pad>");
  EXPECT_EQ(vocabulary.piece(Vocabulary::kUnknown), "<unk>");
  EXPECT_EQ(vocabulary.piece(Vocabulary::kBegin), "<s>");
  EXPECT_EQ(vocabulary.piece(Vocabulary::kEnd), "</s>");
  const std::int32_t symbol = vocabulary.id("<2en>");
  EXPECT_NE(symbol, Vocabulary::kUnknown);
  EXPECT_THAT(vocabulary.encode("<2en> balor"), ::testing::Contains(symbol));
  EXPECT_EQ(vocabulary.id("no such piece"), Vocabulary::kUnknown);
  std::vector<std::int32_t> ids = vocabulary.encode("balor");
  ids.insert(ids.begin(), Vocabulary::kBegin);
  ids.insert(ids.end(), {Vocabulary::kEnd, Vocabulary::kPad, Vocabulary::kPad});
  EXPECT_EQ(vocabulary.decode(ids), "balor");
}

TEST(Vocabulary, IsTheSameEveryTime) {
  const TemporaryFolder folder;
  VocabularyOptions options = small_options();
  options.max_sentences = 300;  // a random sample
  Vocabulary::train(sentences(), options).save(folder.path("a"));
  Vocabulary::train(sentences(), options).save(folder.path("b"));
  EXPECT_TRUE(folder.read("a") == folder.read("b"));
  options.seed = 2;
  Vocabulary::train(sentences(), options).save(folder.path("c"));
  EXPECT_TRUE(folder.read("a") != folder.read("c"));
}

TEST(Vocabulary, ComesBackFromItsFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("below/vocabulary.model");
  small_vocabulary().save(path);
  const Vocabulary again = Vocabulary::load(path);
  EXPECT_EQ(again.size(), 340);
  EXPECT_EQ(again.encode("balor mistra"), small_vocabulary().encode("balor mistra"));
  again.save(folder.path("again"));
  EXPECT_TRUE(folder.read("again") == folder.read("below/vocabulary.model"));
}

TEST(Vocabulary, RefusesFilesThatAreNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { Vocabulary::load(folder.write("text", "no model")); }),
              HasSubstr("not a SentencePiece model"));
  EXPECT_THAT(refusal([&] { Vocabulary::load(folder.path("none")); }), HasSubstr("No such file"));
  small_vocabulary().save(folder.path("whole"));
  const std::string whole = folder.read("whole");
  for (const std::size_t size : {std::size_t{1}, std::size_t{40}, whole.size() / 2}) {
    EXPECT_NE(refusal([&] { Vocabulary::load(folder.write("part", whole.substr(0, size))); }), "not refused") << size;
  }
}

TEST(Vocabulary, SaysWhenTheTextIsTooSmallForIt) {
  VocabularyOptions options = small_options();
  options.size = 8000;
  EXPECT_THAT(
      [&] { Vocabulary::train(sentences(), options); },
      ThrowsMessage<InvalidArgument>(MatchesRegex(
          "vocabulary_size is 8000, but 500 sentences give [0-9]+ ids at most; use no more than that, or more text")));
  EXPECT_THAT(refusal([] { Vocabulary::train(std::vector<std::string>{}, {}); }), HasSubstr("no text to make it of"));
  EXPECT_THAT(refusal([] { Vocabulary::train(std::vector<std::string>{"", " \n "}, {}); }), HasSubstr("no text"));
}

TEST(Vocabulary, RefusesOptionsOutsideTheirDomain) {
  const auto train_with = [](const auto& change) {
    VocabularyOptions options = small_options();
    change(options);
    Vocabulary::train(sentences(), options);
  };
  EXPECT_THROW(train_with([](VocabularyOptions& options) { options.size = 262; }), InvalidArgument);
  EXPECT_THROW(train_with([](VocabularyOptions& options) { options.size = -1; }), InvalidArgument);
  EXPECT_THROW(train_with([](VocabularyOptions& options) { options.character_coverage = 1.1; }), InvalidArgument);
  EXPECT_THROW(train_with([](VocabularyOptions& options) { options.symbols = {"a,b"}; }), InvalidArgument);
  EXPECT_THROW(train_with([](VocabularyOptions& options) { options.max_sentences = -1; }), InvalidArgument);
  EXPECT_THROW(small_vocabulary().decode({340}), InvalidArgument);
  EXPECT_THROW(small_vocabulary().decode({-1}), InvalidArgument);
  EXPECT_THROW(small_vocabulary().piece(340), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::data
