# The commands of this project. `make` lists them; CMake does the work.
#
#   make test JOBS=1        fewer compilers at a time (default: one per core)
#   make test DEPS=no       install nothing, use what is there
#   make test UNITY=OFF     compile every file by itself: better for who changes the sources; only before the first build

DEPS := yes
UNITY := ON
FUZZ_SECONDS := 60
JOBS = $(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),$(shell nproc))

# A goal starts tools that use all cores, in a tree they do not share: `make -j` applies to the tools, not to the goals.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: zoo help build test demo demo-schedules demo-translate experiments bench bench-peers-deps bench-instructions
.PHONY: sanitize sanitize-torch tsan fuzz fuzz-checkpoints soak-checkpoints format lint docs clean test-torch2
.PHONY: core-deps data-deps torch-deps lint-deps docs-deps fuzz-deps processes-deps bench-deps peers-deps zoo-deps

CTEST = ctest --output-on-failure --no-tests=error --parallel $(JOBS)

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { line = sprintf("  make %-16s", $$1); count = split($$2, words, " "); \
	  for (word = 1; word <= count; word++) { \
	    if (length(line " " words[word]) > 80) { print line; line = sprintf("%23s", "") } \
	    line = line " " words[word] } \
	  print line }' Makefile

build: build/build.ninja ## build everything (Release); the command is build/bin/gpipe
	@cmake --build build --parallel $(JOBS)

test: processes-deps docs-deps build ## build and run every test; tell which were skipped, and why
	@status=0; $(CTEST) --test-dir build --output-junit $(CURDIR)/build/tests.xml || status=$$?; \
	  if command -v python3 >/dev/null; then scripts/skipped-tests build/tests.xml || status=1; \
	  else echo 'there is no python3 to tell which tests were skipped, and why: build/tests.xml says it'; fi; exit $$status

test-torch2: ## make a root of Debian 13, and build and run every test in it, against libtorch 2; as root
	@scripts/test-debian13 --jobs $(JOBS)

demo: build/build.ninja ## build the command and train AmoebaNet-D on Fashion-MNIST on two workers, about a minute after the build
	@cmake --build build --parallel $(JOBS) --target gpipe_cli gpipe_train_program
	@scripts/demo

demo-schedules: build/build.ninja ## build the command and take a tour of the schedules
	@cmake --build build --parallel $(JOBS) --target gpipe_cli
	@scripts/demo-schedules

demo-translate: build/build.ninja ## train a translator of eight languages into English, about 20 minutes
	@cmake --build build --parallel $(JOBS) --target gpipe_cli gpipe_train_program
	@scripts/demo-translate

experiments: build/build.ninja ## repeat the experiments of docs/experiments.md, about an hour
	@cmake --build build --parallel $(JOBS) --target gpipe_cli gpipe_train_program
	@scripts/experiments

bench: build ## build and run the benchmarks: `gpipe bench`, then those of single parts
	@cmake --build build --target bench

bench-peers-deps: peers-deps ## install what `gpipe bench` compares with

zoo: zoo-deps build/build.ninja ## check and measure networks of torchvision, timm and Hugging Face cut into pieces, about an hour
	@cmake --build build --parallel $(JOBS) --target zoo_check torchscript_benchmark
	@scripts/zoo

bench-instructions: bench-deps build/build.ninja ## check by callgrind that a step takes no more instructions
	@cmake build >/dev/null
	@cmake --build build --parallel $(JOBS) --target instruction_benchmark
	@scripts/bench-instructions

sanitize: build/sanitize/build.ninja ## run the tests without torch with the address and undefined-behaviour sanitizers
	@cmake --build build/sanitize --parallel $(JOBS)
	@ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(CTEST) --test-dir build/sanitize

sanitize-torch: build/sanitize-torch/build.ninja ## run the pipeline's tests with the address sanitizer
	@cmake --build build/sanitize-torch --parallel $(JOBS) --target torch_tests
	@ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1 timeout 900 build/sanitize-torch/bin/torch_tests --gtest_brief=1

tsan: build/tsan/build.ninja ## run the tests of workers, channels, executor and prefetch with the thread sanitizer
	@cmake --build build/tsan --parallel $(JOBS) --target executor_tests prefetch_tests
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(CTEST) --test-dir build/tsan -R '^(Executor|Workers|Channel|Prefetch)\.'

fuzz: build/fuzz/build.ninja ## fuzz the parsers for FUZZ_SECONDS (default: 60), with clang
	@cmake --build build/fuzz --parallel $(JOBS) --target parse_fuzzer
	@scripts/fuzz $(FUZZ_SECONDS)

fuzz-checkpoints: build/sanitize/build.ninja ## read a million damaged safetensors files and manifests, under the address sanitizer
	@cmake --build build/sanitize --parallel $(JOBS) --target core_tests
	@GPIPE_FUZZ_FILES=1000000 build/sanitize/bin/core_tests --gtest_filter='*Mutated*'

soak-checkpoints: build/build.ninja ## kill a training a hundred times with SIGKILL, and compare its weights with those of one that was left alone
	@cmake --build build --parallel $(JOBS) --target gpipe_cli gpipe_train_program
	@scripts/soak-checkpoints

soak-devices: build/build.ninja ## train on the late device of the tests, all models, schedules and recompute modes, 20 times
	@cmake --build build --parallel $(JOBS) --target device_tests
	@GPIPE_LATE_REPETITIONS=20 build/bin/device_tests --gtest_filter='*DeviceGrid*'

format: lint-deps ## rewrite the sources with clang-format
	@scripts/lint --fix

lint: lint-deps build/lint/build.ninja ## check the format, what folders include, and, without torch, clang-tidy
	@cmake --build build/lint --target build.ninja -- --quiet
	@scripts/lint --jobs $(JOBS)

docs: docs-deps build ## check the links and the commands in the Markdown files
	@scripts/check-docs

clean: ## remove everything that was built
	rm -rf build

# Configured once; after that, building notices by itself when a CMakeLists.txt has changed.
build/build.ninja: | core-deps data-deps torch-deps
	@cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGPIPE_UNITY=$(UNITY)

# Never built: it says how each file is compiled by itself.
build/lint/build.ninja: | core-deps data-deps torch-deps
	@cmake -S . -B build/lint -G Ninja -DCMAKE_BUILD_TYPE=Release -DGPIPE_UNITY=OFF

build/sanitize/build.ninja: | core-deps data-deps
	@cmake -S . -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
	  -DGPIPE_SANITIZE=ON -DGPIPE_BUILD_TORCH=OFF -DGPIPE_BUILD_CLI=OFF -DGPIPE_BUILD_BENCHMARKS=OFF -DGPIPE_INSTALL=OFF

build/sanitize-torch/build.ninja: | core-deps torch-deps
	@cmake -S . -B build/sanitize-torch -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
	  -DGPIPE_SANITIZE=address -DGPIPE_BUILD_DATA=OFF -DGPIPE_BUILD_CLI=OFF -DGPIPE_BUILD_BENCHMARKS=OFF -DGPIPE_INSTALL=OFF

build/tsan/build.ninja: | core-deps
	@cmake -S . -B build/tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
	  -DGPIPE_SANITIZE=thread -DGPIPE_BUILD_TORCH=OFF -DGPIPE_BUILD_DATA=OFF -DGPIPE_BUILD_CLI=OFF -DGPIPE_BUILD_BENCHMARKS=OFF -DGPIPE_INSTALL=OFF

build/fuzz/build.ninja: | core-deps fuzz-deps
	@cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
	  -DCMAKE_CXX_COMPILER=clang++ -DGPIPE_SANITIZE=ON -DGPIPE_BUILD_FUZZERS=ON -DGPIPE_BUILD_TESTS=OFF \
	  -DGPIPE_BUILD_TORCH=OFF -DGPIPE_BUILD_DATA=OFF -DGPIPE_BUILD_CLI=OFF -DGPIPE_BUILD_BENCHMARKS=OFF -DGPIPE_INSTALL=OFF

core-deps data-deps torch-deps lint-deps docs-deps fuzz-deps processes-deps bench-deps peers-deps zoo-deps:
ifneq ($(DEPS),no)
	@scripts/install-deps $(@:-deps=)
endif
