# gpipe_data: readers of data sets, vocabularies, batches. Plain values, no torch.
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(LibXml2 REQUIRED)
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
if(NOT SENTENCEPIECE_INCLUDE_DIR OR NOT SENTENCEPIECE_LIBRARY OR NOT SENTENCEPIECE_TRAIN_LIBRARY)
  message(FATAL_ERROR "SentencePiece is missing: install libsentencepiece-dev (scripts/install-deps data), or configure with -DGPIPE_BUILD_DATA=OFF")
endif()

add_library(gpipe_data STATIC
  data/atomic_file.cpp
  data/augment.cpp
  data/batches.cpp
  data/cifar10.cpp
  data/data_dir.cpp
  data/data_error.cpp
  data/gzip.cpp
  data/html_paragraphs.cpp
  data/idx.cpp
  data/image_set.cpp
  data/libreoffice_help.cpp
  data/order.cpp
  data/parallel_corpus.cpp
  data/split.cpp
  data/subwords.cpp
  data/text.cpp
  data/vocabulary.cpp
)
gpipe_compile_together(gpipe_data 9)
set_target_properties(gpipe_data PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
target_link_libraries(gpipe_data
  PUBLIC gpipe::core
  PRIVATE gpipe_warnings fmt::fmt nlohmann_json::nlohmann_json ZLIB::ZLIB PNG::PNG LibXml2::LibXml2
    ${CMAKE_DL_LIBS})

# See Note [Two protobufs] in data/subwords.h. It stands next to the programs that load it.
add_library(gpipe_subwords MODULE data/sentencepiece_subwords.cpp)
set_target_properties(gpipe_subwords PROPERTIES
  CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
target_compile_features(gpipe_subwords PRIVATE cxx_std_17)
target_include_directories(gpipe_subwords SYSTEM PRIVATE ${SENTENCEPIECE_INCLUDE_DIR})
target_include_directories(gpipe_subwords PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(gpipe_subwords PRIVATE gpipe_warnings ${SENTENCEPIECE_TRAIN_LIBRARY} ${SENTENCEPIECE_LIBRARY})
add_dependencies(gpipe_data gpipe_subwords)
