// A small corpus to translate, in the files of LibreOffice's help.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "run_command.h"

namespace gpipe::cli {

// Pages whose split is decided by their names: with some dozens there are some of each.
inline void write_help(const TemporaryFolder& folder, int num_pages = 80) {
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

}  // namespace gpipe::cli
