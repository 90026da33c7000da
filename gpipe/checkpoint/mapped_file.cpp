#include "gpipe/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpipe/checkpoint/output_file.h"

namespace gpipe {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Not blocking: a named pipe would wait for somebody to write into it.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw_file_error(path, "cannot be opened");
  struct stat status {};
  const bool is_known = fstat(file, &status) == 0;
  if (is_known && S_ISREG(status.st_mode) && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    if (memory != MAP_FAILED) data_ = static_cast<char*>(memory);
  }
  const int error = errno;
  close(file);
  errno = error;
  if (!is_known || (size_ > 0 && data_ == nullptr)) throw_file_error(path, "cannot be read");
  if (!S_ISREG(status.st_mode)) throw CheckpointError(path, ": is not a file; name a file");
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace gpipe
