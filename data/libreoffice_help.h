// LibreOffice's help as a parallel corpus: a paragraph has the same id on the same page in every language.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/parallel_corpus.h"

namespace gpipe::data {

// How far the pages of one language are read.
struct HelpProgress {
  std::string language;
  std::int64_t num_read = 0;
  std::int64_t num_pages = 0;
};

struct HelpOptions {
  // As their folders are called, in either case: "de", "pt-BR". None: all that are there, but for ca-valencia, nearly
  // the same as ca.
  std::vector<std::string> languages;
  // Pairs with fewer words in English are left out: names of buttons and the like. 1: none.
  std::int64_t min_english_words = 3;
  // Where the pairs of a language are kept once they are made, in a file such as de.tsv; a file that was made of other
  // pages, or was cut off, is made again. If it cannot be written, nothing is kept. Empty: nowhere.
  std::string cache_dir;
  std::function<void(const HelpProgress&)> on_progress;  // may be empty
};

// The languages in `dir`, which has folders such as de/text/: without English, and without links to another language
// (sk is one to cs: the package has no Slovak text). Sorted. Throws DataError if `dir` cannot be read.
std::vector<std::string> help_languages(const std::string& dir);

// The cache_dir of the help in `dir`: a folder in data_dir(), since `dir` may be the system's. Empty if there is no
// data_dir().
std::string help_cache_dir(const std::string& dir);

// The split of a page, "swriter/guide/auto_off.html": a function of its name, so the same in every language and on
// every machine. About 3 % are dev, 5 % test.
Split help_split(std::string_view page);

// The pairs of all languages, in the order of the languages, the pages and the paragraphs. Without those that are empty
// or the same in both languages, which is to say not translated. A pair that is on several pages is taken once; a text
// that is on a train page is in train only, so dev and test have no English text that was trained on. Throws DataError;
// also for a file in the cache that is not ours, which is left alone.
ParallelCorpus read_libreoffice_help(const std::string& dir, const HelpOptions& options);

}  // namespace gpipe::data
