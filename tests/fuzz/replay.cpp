// Runs the fuzz target once over each file of the folders given: what a fuzzer has ever found stays found.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int num_files = 0;
  for (int folder = 1; folder < argc; ++folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[folder])) {
      if (!entry.is_regular_file()) continue;
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++num_files;
    }
  }
  if (num_files == 0) std::fprintf(stderr, "no files to replay\n");
  return num_files > 0 ? 0 : 1;
}
