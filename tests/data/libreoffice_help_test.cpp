// LibreOffice's help in miniature: what is joined, what is left out, which split it goes to, and the cache.
#include "data/libreoffice_help.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <cstdlib>
#include <set>

#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A page's name that is in the split.
std::string page_of(Split split, int which = 0) {
  for (int number = 0;; ++number) {
    std::string name = "swriter/guide/page" + std::to_string(number) + ".html";
    if (help_split(name) == split && which-- == 0) return name;
  }
}

void write_page(const TemporaryFolder& folder, const std::string& language, const std::string& name,
                const std::string& body) {
  folder.write(language + "/text/" + name, "<html><body>" + body + "</body></html>");
}

ParallelCorpus read(const TemporaryFolder& folder, const std::vector<std::string>& languages = {}) {
  HelpOptions options;
  options.languages = languages;
  options.min_english_words = 1;
  return read_libreoffice_help(folder.path(), options);
}

std::vector<std::string> shown(const std::vector<SentencePair>& pairs) {
  std::vector<std::string> lines;
  for (const SentencePair& pair : pairs) lines.push_back(pair.language + ": " + pair.source + " = " + pair.target);
  return lines;
}

TEST(LibreofficeHelp, JoinsParagraphsOfOnePageAndId) {
  const TemporaryFolder folder;
  const std::string page = page_of(Split::kTrain);
  write_page(folder, "en-US", page, "<p id=a>One</p><p id=b>Two</p><p id=c>only English</p>");
  write_page(folder, "en-US", page_of(Split::kTrain, 1), "<p id=d>on another page</p>");
  write_page(folder, "de", page, "<p id=b>Zwei</p><p id=a>Eins</p><p id=d>Vier</p><p id=e>nur deutsch</p>");
  write_page(folder, "fr", page, "<p id=a>Un</p>");
  EXPECT_THAT(shown(read(folder).train), ElementsAre("de: Zwei = Two", "de: Eins = One", "fr: Un = One"));
}

TEST(LibreofficeHelp, LeavesOutWhatIsEmptyOrNotTranslatedOrRepeated) {
  const TemporaryFolder folder;
  const std::string page = page_of(Split::kTrain);
  write_page(folder, "en-US", page, "<p id=a>Same</p><p id=b></p><p id=c>Three</p><p id=d>Four</p><p id=e>Four</p>");
  write_page(folder, "de", page,
             "<p id=a> Same </p><p id=b>Zwei</p><p id=c></p><p id=d>Vier</p><p id=d>Fünf</p><p id=e>Vier</p>");
  EXPECT_THAT(shown(read(folder).train), ElementsAre("de: Vier = Four"));
}

TEST(LibreofficeHelp, LeavesOutPairsWithFewEnglishWords) {
  const TemporaryFolder folder;
  const std::string page = page_of(Split::kTrain);
  write_page(folder, "en-US", page, "<p id=a>Two words</p><p id=b>These are three</p>");
  write_page(folder, "de", page, "<p id=a>Das sind zwei Wörter</p><p id=b>Drei</p>");
  HelpOptions options;
  EXPECT_THAT(shown(read_libreoffice_help(folder.path(), options).train), ElementsAre("de: Drei = These are three"));
  options.min_english_words = 4;
  EXPECT_THAT(refusal([&] { read_libreoffice_help(folder.path(), options); }),
              HasSubstr("no pair has 4 English words"));
}

TEST(LibreofficeHelp, SplitsByPageTheSameWayInEveryLanguage) {
  const TemporaryFolder folder;
  for (const Split split : {Split::kTrain, Split::kDev, Split::kTest}) {
    const std::string english = std::string("English of ") + to_string(split);
    write_page(folder, "en-US", page_of(split), "<p id=a>" + english + "</p>");
    write_page(folder, "de", page_of(split), "<p id=a>Deutsch</p>");
    write_page(folder, "it", page_of(split), "<p id=a>Italiano</p>");
  }
  const ParallelCorpus corpus = read(folder);
  for (const Split split : {Split::kTrain, Split::kDev, Split::kTest}) {
    const std::string english = std::string("English of ") + to_string(split);
    EXPECT_THAT(shown(corpus.split(split)), ElementsAre("de: Deutsch = " + english, "it: Italiano = " + english));
  }
}

TEST(LibreofficeHelp, KeepsWhatIsOnATrainPageOutOfDevAndTest) {
  const TemporaryFolder folder;
  for (const Split split : {Split::kTrain, Split::kDev, Split::kTest}) {
    const std::string on_two = split == Split::kTrain ? "" : "<p id=b>on dev and test</p>";
    write_page(folder, "en-US", page_of(split), "<p id=a>on all</p>" + on_two);
  }
  write_page(folder, "de", page_of(Split::kTest), "<p id=a>auf allen</p><p id=b>auf zweien</p>");
  write_page(folder, "de", page_of(Split::kDev), "<p id=a>auf allen</p><p id=b>auf zwei</p>");
  const ParallelCorpus corpus = read(folder);
  EXPECT_THAT(shown(corpus.train), ElementsAre("de: auf allen = on all"));
  EXPECT_THAT(shown(corpus.dev), IsEmpty());
  EXPECT_EQ(corpus.test.size(), 2U);
}

TEST(LibreofficeHelp, HoldsOutAFewPercentOfThePages) {
  int num_pages[3] = {};
  for (int page = 0; page < 100000; ++page) {
    ++num_pages[static_cast<int>(help_split("scalc/01/0" + std::to_string(page) + ".html"))];
  }
  EXPECT_NEAR(num_pages[1], 3000, 300);
  EXPECT_NEAR(num_pages[2], 5000, 400);
  // The splits of a corpus that is in use must not change.
  EXPECT_EQ(page_of(Split::kDev), "swriter/guide/page8.html");
  EXPECT_EQ(page_of(Split::kTest), "swriter/guide/page35.html");
}

TEST(LibreofficeHelp, LanguagesAreFoldersThatAreNoLinksAndNotEnglish) {
  const TemporaryFolder folder;
  for (const char* language : {"en-US", "en-GB", "cs", "pt-BR"}) {
    write_page(folder, language, page_of(Split::kTrain), std::string("<p id=a>in ") + language + "</p>");
  }
  folder.write("media/picture.svg", "<svg/>");
  std::filesystem::create_symlink("cs", folder.path("sk"));
  EXPECT_THAT(help_languages(folder.path()), ElementsAre("cs", "pt-BR"));
  EXPECT_EQ(read(folder).num_pairs(), 2U);
  EXPECT_EQ(read(folder, {"PT-br", "pt-BR"}).num_pairs(), 1U);
  EXPECT_THAT(refusal([&] { read(folder, {"sk"}); }), HasSubstr("'sk' is only a link to 'cs'; use that language"));
  EXPECT_THAT(refusal([&] { read(folder, {"en-GB"}); }), HasSubstr("'en-GB' is English already"));
}

TEST(LibreofficeHelp, LeavesOutValencianUnlessItIsNamed) {
  const TemporaryFolder folder;
  for (const char* language : {"en-US", "ca", "ca-valencia"}) {
    write_page(folder, language, page_of(Split::kTrain), std::string("<p id=a>in ") + language + "</p>");
  }
  EXPECT_THAT(shown(read(folder).train), ElementsAre("ca: in ca = in en-US"));
  EXPECT_THAT(shown(read(folder, {"ca-valencia"}).train), ElementsAre("ca-valencia: in ca-valencia = in en-US"));
}

TEST(LibreofficeHelp, SaysHowToGetWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { read(folder); }), HasSubstr("no language in it; run gpipe get-data libreoffice-help"));
  EXPECT_THAT(refusal([&] { help_languages(folder.path("none")); }), HasSubstr("run gpipe get-data"));
  const std::string page = page_of(Split::kTrain);
  write_page(folder, "de", page, "<p id=a>x</p>");
  EXPECT_THAT(refusal([&] { read(folder); }),
              AllOf(HasSubstr("en-US"), EndsWith("gpipe get-data libreoffice-help en-us")));
  write_page(folder, "en-US", page, "<p id=b>y</p>");
  EXPECT_THAT(refusal([&] { read(folder); }), HasSubstr("no paragraph in it has its translation"));
  EXPECT_THAT(refusal([&] { read(folder, {"pt-BR"}); }),
              AllOf(HasSubstr("no language 'pt-BR'"), EndsWith("run gpipe get-data libreoffice-help pt-br")));
  std::filesystem::create_directories(folder.path("it/text"));
  EXPECT_THAT(refusal([&] { read(folder, {"it"}); }), HasSubstr("no pages (*.html) in it"));
  write_page(folder, "fr", page, "\xff");
  EXPECT_THAT(refusal([&] { read(folder, {"fr"}); }),
              AllOf(HasSubstr("not UTF-8"), EndsWith("; run gpipe get-data --again libreoffice-help fr")));
}

class CachedHelp : public ::testing::Test {
 protected:
  CachedHelp() {
    write_page(folder_, "en-US", page_of(Split::kTrain), "<p id=a>One two three</p>");
    write_page(folder_, "de", page_of(Split::kTrain), "<p id=a>Eins zwei drei</p>");
    options_.cache_dir = cache_.path("below");
    options_.on_progress = [this](const HelpProgress& progress) {
      ++num_read_;
      EXPECT_EQ(progress.num_read, 1);
      EXPECT_EQ(progress.num_pages, 1);
    };
  }
  std::vector<std::string> train() { return shown(read_libreoffice_help(folder_.path(), options_).train); }

  TemporaryFolder folder_;
  TemporaryFolder cache_;
  HelpOptions options_;
  int num_read_ = 0;  // pages
};

TEST_F(CachedHelp, ReadsEveryPageOnce) {
  EXPECT_THAT(train(), ElementsAre("de: Eins zwei drei = One two three"));
  EXPECT_EQ(num_read_, 2);
  EXPECT_THAT(train(), ElementsAre("de: Eins zwei drei = One two three"));
  EXPECT_EQ(num_read_, 2);
}

TEST_F(CachedHelp, IsMadeAgainWhenThePagesAreOthers) {
  train();
  write_page(folder_, "de", page_of(Split::kTrain), "<p id=a>Eins zwei drei vier</p>");
  EXPECT_THAT(train(), ElementsAre("de: Eins zwei drei vier = One two three"));
  EXPECT_EQ(num_read_, 4);
}

TEST_F(CachedHelp, IsMadeAgainWhenItIsCutOff) {
  train();
  const std::string text = cache_.read("below/de.tsv");
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, text.find('\n') + 1, text.size() - 1}) {
    cache_.write("below/de.tsv", text.substr(0, size));
    EXPECT_THAT(train(), ElementsAre("de: Eins zwei drei = One two three")) << size;
    EXPECT_EQ(cache_.read("below/de.tsv"), text) << size;
  }
}

TEST_F(CachedHelp, LeavesTheFilesOfOthersAlone) {
  for (const std::string text : {"my own notes\n", "#\n", "# gpipe parallel worlds 1\t"}) {
    cache_.write("below/de.tsv", text);
    EXPECT_THAT(refusal([&] { train(); }), EndsWith("de.tsv: is not gpipe's; move it away"));
    EXPECT_EQ(cache_.read("below/de.tsv"), text);
  }
  std::filesystem::remove(cache_.path("below/de.tsv"));
  std::filesystem::create_directory(cache_.path("below/de.tsv"));
  EXPECT_THAT(refusal([&] { train(); }), EndsWith("is not gpipe's; move it away"));
}

TEST_F(CachedHelp, NeedNotBeWritable) {
  options_.cache_dir = cache_.write("file", "no folder") + "/below";
  EXPECT_THAT(train(), ElementsAre("de: Eins zwei drei = One two three"));
  EXPECT_EQ(cache_.read("file"), "no folder");
}

TEST(HelpCacheDir, IsInTheDataFolderAndOneForEachHelp) {
  const TemporaryFolder data;
  const char* old = std::getenv("GPIPE_DATA_DIR");
  const std::string before = old == nullptr ? "" : old;
  setenv("GPIPE_DATA_DIR", data.path().c_str(), 1);
  const std::string one = help_cache_dir(data.path("one"));
  EXPECT_THAT(one, StartsWith(data.path("libreoffice-help-pairs/")));
  EXPECT_EQ(help_cache_dir(data.path("two/../one")), one);
  EXPECT_NE(help_cache_dir(data.path("two")), one);
  setenv("GPIPE_DATA_DIR", before.c_str(), 1);
}

}  // namespace
}  // namespace gpipe::data
