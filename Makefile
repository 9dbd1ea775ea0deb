# SPDX-License-Identifier: Apache-2.0
# A thin layer over CMake (CMakePresets.json): what a person types. Each target first sees to it that
# the packages are there (scripts/setup; SETUP=no skips that).
#   make run | test | test-long | build | bench | install | docs | format | clean
#   PRESET=release|debug|asan|tsan|clang   JOBS=N   PREFIX=/usr/local DESTDIR=   WERROR=ON
.DEFAULT_GOAL := build
PRESET ?= release
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
WERROR ?= OFF
SETUP ?= yes

# A new build directory uses ninja where it is installed; an existing one keeps what it has.
export CMAKE_GENERATOR ?= $(shell command -v ninja >/dev/null 2>&1 && echo Ninja || echo Unix Makefiles)
setup = @if [ "$(SETUP)" != no ]; then scripts/setup $(1); fi
cmake_build = env -u MAKEFLAGS -u MFLAGS cmake --build $(BUILD) --parallel $(JOBS)

.PHONY: help setup-build setup-test configure build run test test-long bench install docs format clean

help:
	@sed -n '/^# A thin/,/^[^#]/{/^#/s/^# \{0,1\}//p;}' Makefile

setup-build:
	$(call setup,build)

setup-test:
	$(call setup,test)

configure: setup-build
	@scripts/configure $(PRESET) -DTS_WERROR=$(WERROR)

build: configure
	@$(cmake_build)

# Trains a small Llama on the bundled text on four ranks, about a minute; then a sample and the report. Needs the
# program alone: modules for MPI and GPUs, which take longer to compile, are left to `make build`.
run: configure
	@$(cmake_build) --target tessera_program
	@$(BUILD)/bin/tessera train examples/train/tales.ini --set train.resume=0 --set train.output=$(BUILD)/run

test: setup-test configure
	@$(cmake_build) --target all tests
	@scripts/test $(BUILD)

# The full sweeps that `make test` samples.
test-long: setup-test configure
	@$(cmake_build) --target all tests
	@scripts/test $(BUILD) --long

bench: build
	@scripts/bench $(BUILD)

install: build
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

docs:
	@scripts/docs --write

format:
	@scripts/check-format --write

clean:
	rm -rf build
