// A table in a WireRecord: a field for each column, with a value for each row. One list of columns serves both ways.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

template <typename Place>
struct WireColumn {
  const char* name;
  Place place;
  std::int64_t least;
  std::int64_t most;
};

// `place` gives a row's value by reference: a pointer to a member, or a function. An integer from another rank, or an
// enumerator as one, is to be from `least` to `most`.
template <typename Place>
constexpr WireColumn<Place> column(const char* name, Place place,
                                   std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                                   std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  return {name, place, least, most};
}

template <typename Row, typename... Places>
void add_table(WireRecord& record, const std::vector<Row>& rows, const std::tuple<WireColumn<Places>...>& columns) {
  const auto add_column = [&](const auto& column) {
    using Value = std::decay_t<decltype(std::invoke(column.place, rows.front()))>;
    std::vector<std::conditional_t<std::is_enum_v<Value>, std::int64_t, Value>> values;
    values.reserve(rows.size());
    for (const Row& row : rows)
      values.push_back(static_cast<typename decltype(values)::value_type>(std::invoke(column.place, row)));
    record.add(column.name, std::move(values));
  };
  std::apply([&](const auto&... column) { (add_column(column), ...); }, columns);
}

// Throws as the reader does, also if the columns have different lengths.
template <typename Row, typename... Places>
std::vector<Row> read_table(WireReader& reader, const std::tuple<WireColumn<Places>...>& columns) {
  std::vector<Row> rows;
  const auto read_column = [&](const auto& column) {
    using Value = std::decay_t<decltype(std::invoke(column.place, rows.front()))>;
    const auto fill = [&](const auto& values) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        std::invoke(column.place, rows[row]) = static_cast<Value>(values[row]);
      }
    };
    if constexpr (std::is_same_v<Value, std::string>) {
      fill(reader.texts(column.name));
    } else if constexpr (std::is_same_v<Value, double>) {
      fill(reader.numbers(column.name));
    } else if constexpr (std::is_same_v<Value, at::Tensor>) {
      fill(reader.tensors(column.name));
    } else if constexpr (std::is_same_v<Value, bool>) {
      fill(reader.flags(column.name));
    } else {
      using Limits = std::numeric_limits<std::conditional_t<std::is_enum_v<Value>, int, Value>>;
      fill(reader.integers(column.name, std::max<std::int64_t>(column.least, Limits::min()),
                           std::min<std::int64_t>(column.most, Limits::max())));
    }
  };
  std::apply(
      [&](const auto&... column) {
        rows.resize(reader.num_rows({column.name...}));
        (read_column(column), ...);
      },
      columns);
  return rows;
}

}  // namespace gpipe::detail
