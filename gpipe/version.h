// The version of the library, for programs and for the preprocessor. CMakeLists.txt reads it from here.
#pragma once

#define GPIPE_VERSION_MAJOR 0
#define GPIPE_VERSION_MINOR 1
#define GPIPE_VERSION_PATCH 0
#define GPIPE_VERSION "0.1.0"

namespace gpipe {

// "1.2.3"
inline constexpr const char* kVersion = GPIPE_VERSION;

}  // namespace gpipe
