#include "data/libreoffice_help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "data/atomic_file.h"
#include "data/data_error.h"
#include "data/gzip.h"
#include "data/html_paragraphs.h"
#include "data/random.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnglish = "en-US";
constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 24;
constexpr std::uint64_t kDevPercent = 3;
constexpr std::uint64_t kTestPercent = 5;

std::string lower_case(std::string text) {
  for (char& character : text) character = static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  return text;
}

bool is_english(const std::string& language) { return lower_case(language.substr(0, 3)) == "en-"; }

// The pages of one language: their names, sorted, and how many bytes they are together.
struct Pages {
  fs::path dir;
  std::vector<std::string> names;
  std::uintmax_t num_bytes = 0;
};

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
    throw DataError(pages.dir.string(), "cannot read it: " + error.code().message(),
                    "run scripts/get-data libreoffice-help " + lower_case(language));
  }
  if (pages.names.empty()) {
    throw DataError(pages.dir.string(), "no pages (*.html) in it",
                    "run scripts/get-data libreoffice-help " + lower_case(language));
  }
  std::sort(pages.names.begin(), pages.names.end());
  return pages;
}

std::vector<Paragraph> read_page(const Pages& pages, const std::string& name) {
  const std::string path = (pages.dir / name).string();
  return html_paragraphs(read_bytes(path, kMaxPageBytes), path);
}

// Reads every page once, in order.
template <typename Take>
void read_pages(const Pages& pages, const std::string& language, const HelpOptions& options, const Take& take) {
  HelpProgress progress{language, 0, static_cast<std::int64_t>(pages.names.size())};
  for (const std::string& name : pages.names) {
    take(name, read_page(pages, name));
    ++progress.num_read;
    if (options.on_progress) options.on_progress(progress);
  }
}

// Page and id to text. The first of several paragraphs with one id counts.
using TextOfId = std::unordered_map<std::string, std::string>;
using English = std::unordered_map<std::string, TextOfId>;

TextOfId text_of_id(std::vector<Paragraph> paragraphs) {
  TextOfId texts;
  for (Paragraph& paragraph : paragraphs) texts.emplace(std::move(paragraph.id), std::move(paragraph.text));
  return texts;
}

void join_page(const std::vector<Paragraph>& page, TextOfId english, const std::string& language,
               std::vector<SentencePair>& pairs) {
  for (const Paragraph& paragraph : page) {
    const auto same = english.find(paragraph.id);
    if (same == english.end()) continue;
    const std::string target = std::move(same->second);
    english.erase(same);
    if (paragraph.text.empty() || target.empty() || paragraph.text == target) continue;
    pairs.push_back({paragraph.text, target, language});
  }
}

// The folder that is meant by a name. Throws DataError if there is none.
std::string folder_of(const std::string& dir, const std::string& language, const std::vector<std::string>& known) {
  const std::string command = "run scripts/get-data libreoffice-help " + lower_case(language);
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

void append(std::vector<SentencePair>& pairs, std::vector<SentencePair>& more) {
  pairs.insert(pairs.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
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
    std::error_code ignored;
    if (!options_.cache_dir.empty() && fs::exists(path, ignored)) {
      const std::string text = read_bytes(path);
      if (tsv_origin(text) == origin) return parse_tsv(text, path);
    }
    ParallelCorpus made = make(pages, language);
    if (made.num_pairs() == 0) {
      throw DataError(pages.dir.string(), "no paragraph in it has its translation in en-US",
                      "run scripts/get-data libreoffice-help " + lower_case(language));
    }
    if (!options_.cache_dir.empty()) write_atomically(path, to_tsv(made, origin));
    return made;
  }

 private:
  ParallelCorpus make(const Pages& pages, const std::string& language) {
    if (english_.empty()) {
      read_pages(english_pages_, kEnglish, options_, [&](const std::string& name, std::vector<Paragraph> page) {
        english_.emplace(name, text_of_id(std::move(page)));
      });
    }
    ParallelCorpus made;
    read_pages(pages, language, options_, [&](const std::string& name, const std::vector<Paragraph>& page) {
      const auto english = english_.find(name);
      if (english != english_.end()) join_page(page, english->second, language, made.split(help_split(name)));
    });
    return made;
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
    throw DataError(dir, "cannot read it: " + error.code().message(), "run scripts/get-data libreoffice-help");
  }
  std::sort(languages.begin(), languages.end());
  return languages;
}

Split help_split(std::string_view page) {
  std::uint64_t hash = 0;
  for (const char character : page) hash = mixed_bits(hash ^ static_cast<unsigned char>(character)) + hash;
  const std::uint64_t percent = mixed_bits(hash) % 100;
  return percent < kDevPercent ? Split::kDev : percent < kDevPercent + kTestPercent ? Split::kTest : Split::kTrain;
}

ParallelCorpus read_libreoffice_help(const std::string& dir, const HelpOptions& options) {
  const std::vector<std::string> known = help_languages(dir);
  std::vector<std::string> folders;
  for (const std::string& language : options.languages) {
    std::string folder = folder_of(dir, language, known);
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(std::move(folder));
  }
  if (options.languages.empty()) folders = known;
  if (folders.empty()) throw DataError(dir, "no language in it", "run scripts/get-data libreoffice-help de");
  Builder builder(dir, options);
  ParallelCorpus corpus;
  for (const std::string& folder : folders) {
    ParallelCorpus one = builder.corpus(folder);
    for (const Split split : {Split::kTrain, Split::kDev, Split::kTest}) append(corpus.split(split), one.split(split));
  }
  return corpus;
}

}  // namespace gpipe::data
