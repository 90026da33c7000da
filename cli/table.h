// The tables of the commands are those of the reports.
#pragma once

#include "gpipe/report/table.h"

namespace gpipe::cli {

using chart::Align;
using chart::Column;
using chart::to_table;

}  // namespace gpipe::cli
