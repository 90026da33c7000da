// Where the data sets are.
#pragma once

#include <string>

namespace gpipe::data {

// Where gpipe get-data puts them: $GPIPE_DATA_DIR, or $XDG_DATA_HOME/gpipe, or $HOME/.local/share/gpipe. Empty
// variables count as not set. Throws DataError if none is set.
std::string data_dir();

// The folder of the data set `name`: "fashion-mnist", "cifar10", "libreoffice-help", "kjv", "gcide". In data_dir(), or
// where a Debian package has put it. Throws DataError, whose message ends with the command that gets it, if it is in
// neither, and if it must not be read; InvalidArgument if there is no such data set.
std::string find_data_set(const std::string& name);

// The path of a file in `dir`. Throws DataError: with `remedy` if it is not there; and if nobody can say, as in a
// folder that must not be read.
std::string file_in(const std::string& dir, const std::string& name, const std::string& remedy);

}  // namespace gpipe::data
