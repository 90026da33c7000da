// Where the data sets are.
#pragma once

#include <string>

namespace gpipe::data {

// Where scripts/get-data puts them: $GPIPE_DATA_DIR, or $XDG_DATA_HOME/gpipe, or $HOME/.local/share/gpipe. Empty variables
// count as not set. Throws DataError if none is set.
std::string data_dir();

// The folder of the data set `name`: "fashion-mnist", "cifar10", "libreoffice-help", "kjv", "gcide". In data_dir(), or where
// a Debian package has put it. Throws DataError, whose message ends with the command that gets it, if it is in neither;
// InvalidArgument if there is no such data set.
std::string find_data_set(const std::string& name);

}  // namespace gpipe::data
