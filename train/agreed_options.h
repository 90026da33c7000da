// Which options the ranks of one training have to be given alike, and what they were given, for them to compare.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::train {

enum class Agreement {
  kValue,     // every rank has the same value: what holds for an option that nothing else is said about
  kPresence,  // every rank is given it, or none is; what it names may be elsewhere on each
  kNone,      // each rank may have its own
};

// Of the option with that name, such as "--lr".
Agreement agreement_on(std::string_view option);

// One text an option of the command that has to be alike, such as "--lr 0.1": its value at this moment, given or not.
// REQUIRES: the options were added by an OptionGroup, and what they are read into still exists.
std::vector<std::string> agreed_options(CLI::App& command);

}  // namespace gpipe::train
