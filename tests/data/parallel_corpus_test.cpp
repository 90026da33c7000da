// The file form of a parallel corpus: both ways without loss, and nothing half-read.
#include "data/parallel_corpus.h"

#include <gmock/gmock.h>

#include "data/atomic_file.h"
#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::HasSubstr;

ParallelCorpus small_corpus() {
  ParallelCorpus corpus;
  corpus.train = {{"Hallo Welt", "Hello world", "de"}, {"Olá", "Hello", "pt-BR"}};
  corpus.dev = {{"नमस्ते", "Namaste", "hi"}};
  corpus.test = {{"# \"quoted\"", "'q'", "de"}};
  return corpus;
}

const std::string kTsv = to_tsv(small_corpus(), "here");

std::string tsv_refusal(const std::string& text) {
  return refusal([&] { parse_tsv(text, "de.tsv"); });
}

std::string with(const std::string& old_part, const std::string& new_part) {
  std::string changed = kTsv;
  const std::size_t at = changed.find(old_part);
  EXPECT_NE(at, std::string::npos) << old_part;
  return changed.replace(at, old_part.size(), new_part);
}

TEST(ParallelCorpus, ComesBackFromItsFileForm) {
  const ParallelCorpus again = parse_tsv(kTsv, "de.tsv");
  EXPECT_EQ(to_tsv(again, "here"), kTsv);
  EXPECT_EQ(again.num_pairs(), 4U);
  EXPECT_EQ(again.train[1].source, "Olá");
  EXPECT_EQ(again.train[1].target, "Hello");
  EXPECT_EQ(again.dev[0].language, "hi");
  EXPECT_EQ(tsv_origin(kTsv), "here");
  EXPECT_EQ(tsv_origin("something else"), "");
  EXPECT_EQ(parse_tsv(to_tsv({}, ""), "de.tsv").num_pairs(), 0U);
}

TEST(ParallelCorpus, RefusesWhatIsNotItsFileForm) {
  EXPECT_THAT(tsv_refusal(""), HasSubstr("de.tsv: line 1: expected"));
  EXPECT_THAT(tsv_refusal("<html>"), HasSubstr("line 1"));
  EXPECT_THAT(tsv_refusal(with("\tHello world", "")), HasSubstr("line 2: expected four columns; delete it"));
  EXPECT_THAT(tsv_refusal(with("Hello world", "Hello\tworld")), HasSubstr("line 2: expected four columns"));
  EXPECT_THAT(tsv_refusal(with("Hello world", "")), HasSubstr("line 2: an empty column"));
  EXPECT_THAT(tsv_refusal(with("dev\t", "valid\t")), HasSubstr("line 4: the first column is none of train, dev, test"));
  EXPECT_THAT(tsv_refusal(with("Hello world", "Hello \xff")), HasSubstr("line 2: not UTF-8"));
  EXPECT_THAT(tsv_refusal(with("1\t4\t", "1\t5\t")), HasSubstr("5 pairs announced, 4 found"));
}

TEST(ParallelCorpus, RefusesAFileThatIsCutOffWhereverItIs) {
  for (std::size_t size = 0; size < kTsv.size(); ++size) {
    EXPECT_NE(tsv_refusal(kTsv.substr(0, size)), "not refused") << size;
  }
}

TEST(ParallelCorpus, ArbitraryTextsAreReadOrRefusedAndNothingElse) {
  std::mt19937 random(1);
  int num_read = 0;
  for (int round = 0; round < 10000; ++round) {
    const std::string text = mutated(kTsv, random);
    try {
      const ParallelCorpus corpus = parse_tsv(text, "de.tsv");
      EXPECT_EQ(to_tsv(corpus, tsv_origin(text)).size(), text.size());
      ++num_read;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(num_read, 500);
  EXPECT_LT(num_read, 9000);
}

TEST(AtomicFile, ReplacesWhatIsThereAndLeavesNothingElse) {
  const TemporaryFolder folder;
  write_atomically(folder.path("new/file"), "one");
  EXPECT_EQ(folder.read("new/file"), "one");
  write_atomically(folder.path("new/file"), std::string("t\0o", 3));
  EXPECT_EQ(folder.read("new/file"), std::string("t\0o", 3));
  EXPECT_EQ(folder.num_entries(), 1U);
}

TEST(AtomicFile, LeavesWhatIsThereWhenItFails) {
  const TemporaryFolder folder;
  folder.write("target/file", "old");  // a folder cannot be replaced by a file
  EXPECT_THAT(refusal([&] { write_atomically(folder.path("target"), "new"); }), HasSubstr("target: cannot write it: "));
  EXPECT_EQ(folder.read("target/file"), "old");
  EXPECT_EQ(folder.num_entries(), 1U);
  EXPECT_THAT(refusal([&] { write_atomically(folder.path("target/file/below"), "new"); }),
              HasSubstr("cannot write it"));
}

}  // namespace
}  // namespace gpipe::data
