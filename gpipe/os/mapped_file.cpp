#include "gpipe/os/mapped_file.h"

#include <sys/mman.h>

#include "gpipe/os/opened_file.h"
#include "gpipe/os/output_file.h"

namespace gpipe {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const PlainFile file = opened_file(path);
  if (file.bytes == 0) return;
  size_ = static_cast<std::size_t>(file.bytes);
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor.get(), 0);
  if (memory == MAP_FAILED) throw_file_error(path, "cannot be read");
  data_ = static_cast<char*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace gpipe
