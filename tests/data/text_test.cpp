// Plain text: lines, held out by position.
#include "data/text.h"

#include <gmock/gmock.h>

#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Text, HoldsOutItsLastLines) {
  const TextCorpus corpus = split_text("one\n\n  two \r\n\t\nthree\nfour", 0.25, "text");
  EXPECT_THAT(corpus.train, ElementsAre("one", "  two", "three"));
  EXPECT_THAT(corpus.dev, ElementsAre("four"));
  EXPECT_EQ(corpus.num_replaced_bytes, 0U);
}

TEST(Text, HasAtLeastOneLineInBothParts) {
  for (const double fraction : {0.001, 0.5, 0.999}) {
    const TextCorpus corpus = split_text("one\ntwo\nthree", fraction, "text");
    EXPECT_GE(corpus.train.size(), 1U);
    EXPECT_GE(corpus.dev.size(), 1U);
    EXPECT_EQ(corpus.train.size() + corpus.dev.size(), 3U);
  }
}

TEST(Text, IsReadFromSeveralFilesEachWithItsOwnDevPart) {
  const TemporaryFolder folder;
  const TextCorpus corpus =
      read_text({folder.write("a.txt", "1\n2\n"), folder.write("b.dict.dz", gzipped("3\n4\n"))}, 0.5);
  EXPECT_THAT(corpus.train, ElementsAre("1", "3"));
  EXPECT_THAT(corpus.dev, ElementsAre("2", "4"));
}

TEST(Text, CountsTheBytesThatAreNoUtf8) {
  const TextCorpus corpus = split_text("caf\xe9\nna\xef\xe9\n", 0.5, "text");
  EXPECT_THAT(corpus.train, ElementsAre("caf\xef\xbf\xbd"));
  EXPECT_EQ(corpus.num_replaced_bytes, 3U);
}

TEST(Text, RefusesACorpusThatIsEmpty) {
  const TemporaryFolder folder;
  const auto text_refusal = [&](const std::string& text) {
    return refusal([&] { read_text({folder.write("corpus.txt", text)}); });
  };
  EXPECT_THAT(text_refusal(""), HasSubstr("corpus.txt: empty"));
  EXPECT_THAT(text_refusal("\n \n\t\r\n"), HasSubstr("corpus.txt: 0 lines of text"));
  EXPECT_THAT(text_refusal("only one line\n"), HasSubstr("1 lines of text; expected at least one to train on"));
  EXPECT_THAT(text_refusal(std::string("a\nb\0c\n", 6)), HasSubstr("not text: a zero at byte 3"));
  EXPECT_THROW(read_text({}), InvalidArgument);
  EXPECT_THROW(split_text("a\nb", 0, "text"), InvalidArgument);
  EXPECT_THROW(split_text("a\nb", 1, "text"), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::data
