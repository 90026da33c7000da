#include "data/libreoffice_help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data/atomic_file.h"
#include "data/data_dir.h"
#include "data/data_error.h"
#include "data/gzip.h"
#include "data/html_paragraphs.h"
#include "data/random.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnglish = "en-US";
constexpr const char* kNearlyCatalan = "ca-valencia";  // most of its paragraphs are those of ca
constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 24;
constexpr std::uint64_t kDevPercent = 3;
constexpr std::uint64_t kTestPercent = 5;

std::string lower_case(std::string text) {
  for (char& character : text) character = static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  return text;
}

bool is_english(const std::string& language) { return lower_case(language.substr(0, 3)) == "en-"; }

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0;
  for (const char character : text) hash = mixed_bits(hash ^ static_cast<unsigned char>(character)) + hash;
  return mixed_bits(hash);
}

// The pages of one language: their names, sorted, and how many bytes they are together.
struct Pages {
  fs::path dir;
  std::vector<std::string> names;
  std::uintmax_t num_bytes = 0;
};

// How to replace a damaged page; the folder is there, so gpipe get-data would leave it alone.
std::string get_again(const std::string& language) {
  return "run gpipe get-data --again libreoffice-help " + lower_case(language);
}

// What to do about a folder: without the right to read it, there is nothing to get.
std::string remedy_for(const std::error_code& error, const std::string& command) {
  return error == std::errc::permission_denied ? "check its permissions" : "run " + command;
}

DataError unreadable(const std::string& path, const std::error_code& error, const std::string& command) {
  const std::string problem = "cannot read it: " + error.message();
  const std::string remedy = remedy_for(error, command);
  return error == std::errc::no_such_file_or_directory ? DataError::missing(path, problem, remedy)
                                                       : DataError(path, problem, remedy);
}

Pages list_pages(const std::string& dir, const std::string& language) {
  Pages pages;
  pages.dir = fs::path(dir) / language / "text";
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(pages.dir)) {
      if (entry.path().extension() != ".html") continue;
      pages.names.push_back(entry.path().lexically_relative(pages.dir).generic_string());
      pages.num_bytes += entry.file_size();
    }
  } catch (const fs::filesystem_error& error) {
    throw unreadable(pages.dir.string(), error.code(), "gpipe get-data libreoffice-help " + lower_case(language));
  }
  if (pages.names.empty()) {
    throw DataError(pages.dir.string(), "no pages (*.html) in it",
                    "run gpipe get-data libreoffice-help " + lower_case(language));
  }
  std::sort(pages.names.begin(), pages.names.end());
  return pages;
}

// Reads every page once, in order.
template <typename Take>
void read_pages(const Pages& pages, const std::string& language, const HelpOptions& options, const Take& take) {
  HelpProgress progress{language, 0, static_cast<std::int64_t>(pages.names.size())};
  for (const std::string& name : pages.names) {
    take(name, read_with_remedy(get_again(language), [&] {
           const std::string path = (pages.dir / name).string();
           return html_paragraphs(read_bytes(path, kMaxPageBytes), path);
         }));
    ++progress.num_read;
    if (options.on_progress) options.on_progress(progress);
  }
}

// The first of several paragraphs with one id counts.
using TextOfId = std::unordered_map<std::string, std::string>;

TextOfId text_of_id(std::vector<Paragraph> paragraphs) {
  TextOfId texts;
  for (Paragraph& paragraph : paragraphs) texts.emplace(std::move(paragraph.id), std::move(paragraph.text));
  return texts;
}

// Note [Repeated paragraphs]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// Pages include parts of others: a third of the pairs are repetitions, and many would be in train and test at once. A
// text has one split, therefore: that of the pages its English is on, train before test before dev. So it depends on
// the English alone, no English text is in two splits, in whatever languages; and a pair is taken once.
class English {
 public:
  void add_page(const std::string& name, TextOfId texts) {
    const Split split = help_split(name);
    for (const auto& [id, text] : texts) {
      const auto [known, is_new] = split_of_text_.emplace(text, split);
      if (!is_new && rank(split) < rank(known->second)) known->second = split;
    }
    pages_.emplace(name, std::move(texts));
  }
  bool empty() const { return pages_.empty(); }
  // nullptr if there is no such page.
  const TextOfId* page(const std::string& name) const {
    const auto found = pages_.find(name);
    return found == pages_.end() ? nullptr : &found->second;
  }
  Split split(const std::string& text) const { return split_of_text_.at(text); }

 private:
  static int rank(Split split) { return split == Split::kTrain ? 0 : split == Split::kTest ? 1 : 2; }

  std::unordered_map<std::string, TextOfId> pages_;
  std::unordered_map<std::string, Split> split_of_text_;
};

// The pairs of one language.
class Joiner {
 public:
  Joiner(const English& english, const std::string& language) : english_(english), language_(language) {}

  void add_page(const std::string& name, std::vector<Paragraph> paragraphs) {
    const TextOfId* english = english_.page(name);
    if (english == nullptr) return;
    for (auto& [id, text] : first_of_each_id(std::move(paragraphs))) {
      const auto same = english->find(id);
      if (same == english->end() || text.empty() || same->second.empty() || text == same->second) continue;
      if (!seen_.insert(text + '\t' + same->second).second) continue;
      corpus_.split(english_.split(same->second)).push_back({std::move(text), same->second, language_});
    }
  }
  ParallelCorpus take() { return std::move(corpus_); }

 private:
  static std::vector<Paragraph> first_of_each_id(std::vector<Paragraph> paragraphs) {
    std::unordered_set<std::string> ids;
    std::vector<Paragraph> first;
    for (Paragraph& paragraph : paragraphs) {
      if (ids.insert(paragraph.id).second) first.push_back(std::move(paragraph));
    }
    return first;
  }

  const English& english_;
  const std::string& language_;
  std::unordered_set<std::string> seen_;
  ParallelCorpus corpus_;
};

// The folder that is meant by a name. Throws DataError if there is none.
std::string folder_of(const std::string& dir, const std::string& language, const std::vector<std::string>& known) {
  const std::string command = "run gpipe get-data libreoffice-help " + lower_case(language);
  for (const std::string& folder : known) {
    if (lower_case(folder) == lower_case(language)) return folder;
  }
  if (is_english(language))
    throw DataError(dir, fmt::format("'{}' is English already", language), "name another language");
  std::error_code ignored;
  if (fs::is_symlink(fs::path(dir) / language, ignored)) {
    throw DataError(dir,
                    fmt::format("'{}' is only a link to '{}'", language,
                                fs::read_symlink(fs::path(dir) / language, ignored).filename().string()),
                    "use that language");
  }
  throw DataError(dir, fmt::format("no language '{}' in it", language), command);
}

// Moves the pairs with enough words. White space is normalized: one space between two words.
void append(std::vector<SentencePair>& pairs, std::vector<SentencePair>& more, std::int64_t min_english_words) {
  for (SentencePair& pair : more) {
    const std::int64_t num_words = 1 + std::count(pair.target.begin(), pair.target.end(), ' ');
    if (num_words >= min_english_words) pairs.push_back(std::move(pair));
  }
}

// Makes corpora, or finds them made.
class Builder {
 public:
  Builder(const std::string& dir, const HelpOptions& options)
      : dir_(dir), options_(options), english_pages_(list_pages(dir, kEnglish)) {}

  ParallelCorpus corpus(const std::string& language) {
    const Pages pages = list_pages(dir_, language);
    const std::string origin =
        fmt::format("{}: {} pages, {} bytes; {}: {} pages, {} bytes", language, pages.names.size(), pages.num_bytes,
                    kEnglish, english_pages_.names.size(), english_pages_.num_bytes);
    const std::string path = (fs::path(options_.cache_dir) / (language + ".tsv")).string();
    std::optional<ParallelCorpus> found = options_.cache_dir.empty() ? std::nullopt : kept(path, origin);
    if (found) return std::move(*found);
    ParallelCorpus made = make(pages, language);
    if (made.num_pairs() == 0) {
      throw DataError(pages.dir.string(), "no paragraph in it has its translation in en-US", get_again(language));
    }
    if (!options_.cache_dir.empty()) keep(path, to_tsv(made, origin));
    return made;
  }

 private:
  // What was made before of the same pages.
  static std::optional<ParallelCorpus> kept(const std::string& path, const std::string& origin) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return std::nullopt;
    std::string text;
    const bool is_file = fs::is_regular_file(path, ignored);
    std::ifstream file;
    if (is_file) file.open(path, std::ios::binary);
    if (file.is_open()) text.assign(std::istreambuf_iterator<char>(file), {});
    if (!file.is_open() || !is_tsv(text)) throw DataError(path, "is not gpipe's", "move it away");
    if (tsv_origin(text) != origin) return std::nullopt;
    try {
      return parse_tsv(text, path);
    } catch (const DataError&) {
      return std::nullopt;  // cut off
    }
  }

  static void keep(const std::string& path, const std::string& text) {
    try {
      write_atomically(path, text);
    } catch (const DataError&) {
      // Then they are made again the next time.
    }
  }

  ParallelCorpus make(const Pages& pages, const std::string& language) {
    if (english_.empty()) {
      read_pages(english_pages_, kEnglish, options_, [&](const std::string& name, std::vector<Paragraph> page) {
        english_.add_page(name, text_of_id(std::move(page)));
      });
    }
    Joiner joiner(english_, language);
    read_pages(pages, language, options_,
               [&](const std::string& name, std::vector<Paragraph> page) { joiner.add_page(name, std::move(page)); });
    return joiner.take();
  }

  std::string dir_;
  const HelpOptions& options_;
  Pages english_pages_;
  English english_;  // read when the first corpus is made
};

}  // namespace

std::vector<std::string> help_languages(const std::string& dir) {
  std::vector<std::string> languages;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_symlink() && fs::is_directory(entry.path() / "text") && !is_english(name))
        languages.push_back(name);
    }
  } catch (const fs::filesystem_error& error) {
    throw unreadable(dir, error.code(), "gpipe get-data libreoffice-help de");
  }
  std::sort(languages.begin(), languages.end());
  return languages;
}

std::string help_cache_dir(const std::string& dir) {
  std::error_code ignored;
  try {
    const fs::path folder = fs::path(data_dir()) / "libreoffice-help-pairs";
    return (folder / fmt::format("{:016x}", hash_of(fs::weakly_canonical(dir, ignored).string()))).string();
  } catch (const DataError&) {
    return "";
  }
}

Split help_split(std::string_view page) {
  const std::uint64_t percent = hash_of(page) % 100;
  return percent < kDevPercent ? Split::kDev : percent < kDevPercent + kTestPercent ? Split::kTest : Split::kTrain;
}

ParallelCorpus read_libreoffice_help(const std::string& dir, const HelpOptions& options) {
  const std::vector<std::string> known = help_languages(dir);
  std::vector<std::string> folders;
  for (const std::string& language : options.languages) {
    std::string folder = folder_of(dir, language, known);
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(std::move(folder));
  }
  if (options.languages.empty()) {
    std::copy_if(known.begin(), known.end(), std::back_inserter(folders),
                 [](const std::string& folder) { return folder != kNearlyCatalan; });
  }
  if (folders.empty()) throw DataError(dir, "no language in it", "run gpipe get-data libreoffice-help de");
  Builder builder(dir, options);
  ParallelCorpus corpus;
  for (const std::string& folder : folders) {
    ParallelCorpus one = builder.corpus(folder);
    for (const Split split : {Split::kTrain, Split::kDev, Split::kTest}) {
      append(corpus.split(split), one.split(split), options.min_english_words);
    }
  }
  if (corpus.num_pairs() == 0) {
    throw DataError(dir, fmt::format("no pair has {} English words or more", options.min_english_words),
                    "use a smaller number");
  }
  return corpus;
}

}  // namespace gpipe::data
