// Of ranks that a launcher has started with one command line, one says what is wrong with it.
#pragma once

namespace gpipe::cli {

// For bad usage. False at once if this process is alone or the first of its launcher's ranks on this host: it has to
// tell. Any other rank gives the first one the time to tell the same, whereupon the launcher ends this one; true if it
// has. False if nobody ended it within some seconds: then the error is this rank's alone.
bool is_told_by_the_first_rank();

}  // namespace gpipe::cli
