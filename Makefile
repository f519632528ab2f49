# SPDX-License-Identifier: Apache-2.0
# A thin front: each target names the tool that does the work. `make help` lists them.

PREFIX ?= /usr
SYSCONFDIR ?= /etc
DESTDIR ?=
# Parallel compilations: as many as there are cores and memory for (about 2 GB each for the largest sources).
JOBS ?= $(shell tools/jobs.sh)

export JOBS PREFIX SYSCONFDIR DESTDIR

.PHONY: check-includes all build packages tarball release python test test-compat test-kubelet test-arm64 test-packages tarball_test release_test packages_test test-web test-loaded docs demo experiment run bench web install uninstall clean clean-all format check tidy setup help
.DEFAULT_GOAL := build

all: build

build: setup
	tools/build.sh dist

# Debian packages, of what make build has made.
packages: setup
	tools/build_packages.sh dist/packages

# A tarball of what make build has made. It installs without root.
tarball: setup
	tools/build_tarball.sh dist/tarball

# Everything of a release, from the last commit.
release: setup
	tools/release.py

# The Python client: a wheel and a source archive, without the network.
python: setup
	tools/build_python.py dist/python

test: setup
	tools/build.sh dev
	tools/run_tests.sh dev

# The daemon with the library of an earlier release, which is built from the history.
test-compat: setup
	tools/build.sh dev
	python3 -B tests/compat/old_library_test.py

# Pods of a real kubelet, which is built from Debian's source package, or of the cluster whose programs
# GPUMUX_TEST_KUBE_BIN names. Needs root.
test-kubelet: setup
	tools/build.sh dev
	python3 -B kubernetes/tests/kubelet_test.py
	python3 -B kubernetes/tests/claims_test.py
	python3 -B kubernetes/tests/manifests_test.py
	python3 -B kubernetes/tests/deployment_test.py

# The library and the simulated driver for arm64: all their unit tests, and scenarios with programs for arm64, in an
# emulator.
test-arm64: setup
	tools/build.sh dev
	tools/build.sh arm64
	tools/run_tests.sh arm64

# Debian packages of dist/ on a clean Debian that boots with systemd, the tarball, and a release, all at once. Needs root.
test-packages: build
	$(MAKE) --jobs --output-sync --no-print-directory tarball_test release_test packages_test

tarball_test release_test packages_test:
	python3 -B tests/packages/$@.py

# The page of `gpumux web` in Debian's chromium, and whether the committed page is what its sources make. Needs Node.js
# 20.19 or newer and npm's registry.
test-web: setup
	tools/build.sh dev
	tools/web.sh verify
	tools/web.sh test

# The suite on a machine that others keep busy. No test may depend on the machine's speed.
test-loaded: setup
	tools/build.sh dev
	tools/test_loaded.sh

# The documents as a static site, which needs neither network nor server to be read.
docs: build
	python3 -B tools/make_reference.py --bin dist/bin --out build/reference
	python3 -B tools/make_site.py --generated build/reference

demo: setup
	tools/build.sh demo
	tools/demo.sh build/demo

# EXPERIMENT: options of bench/experiment/run.py, such as '--only native priority --repeat 5'.
experiment run: build
	python3 bench/experiment/run.py --dist dist $(EXPERIMENT)

bench: setup
	tools/build.sh release
	tools/bench.sh

# The page of `gpumux web`, from TypeScript. What it makes is committed: no other target needs Node.js.
web:
	tools/web.sh build

# Copies what dist/ holds; it never builds, so that `sudo make install` leaves no files of root's in the tree.
install:
	tools/install.sh install

uninstall:
	tools/install.sh uninstall

format:
	tools/check_format.sh --fix

check: setup
	tools/check.sh

# Each C++ file by itself, which a build does not do: tools/check_includes.py looks only at what differs from main.
check-includes: setup
	tools/check_includes.py --all

tidy: setup
	tools/tidy.sh

setup:
	@tools/setup.sh

clean:
	rm -rf dist build/dev build/release

clean-all:
	rm -rf dist build

help:
	@echo 'make, make build   builds gpumux into dist/ (release); SLURM_INCLUDE=DIR names the headers of another Slurm'
	@echo 'make packages      makes Debian packages of dist/ in dist/packages/, after make build'
	@echo 'make tarball       makes a tarball of dist/ in dist/tarball/, which installs without root, after make build'
	@echo 'make release       makes everything of a release from the last commit, in dist/release/'
	@echo 'make python        builds the Python client into dist/python/: a wheel and a source archive'
	@echo 'make test          builds and runs the test suite'
	@echo 'make test-compat   tests the daemon with the library of an earlier release'
	@echo 'make test-kubelet  tests pods of a real kubelet, the manifests and the image (as root; builds the kubelet once)'
	@echo 'make test-arm64    tests the library and the simulated driver for arm64 in an emulator'
	@echo 'make test-packages tests packages, tarball and release (as root)'
	@echo 'make test-web      tests the page of gpumux web in chromium (needs Node.js 20.19 or newer, and npm)'
	@echo 'make test-loaded   runs the test suite while eight programs keep the CPUs busy (needs stress-ng)'
	@echo 'make docs          builds the documents as a site with search: open build/site/index.html'
	@echo 'make demo          three programs share one GPU, real or simulated; builds only what it shows'
	@echo 'make experiment    a latency-sensitive model beside a training loop, under everything that can decide who goes first;'
	@echo '                   under five minutes after the build (also make run; EXPERIMENT="--only native priority" and the like)'
	@echo 'make bench         runs the benchmarks; prints figures beside their baselines'
	@echo 'make web           rebuilds the page of gpumux web, which is committed (needs Node.js 20.19 or newer, and npm)'
	@echo 'make install       copies dist/ to $$(DESTDIR)$$(PREFIX), default /usr, with the systemd unit'
	@echo 'make uninstall     removes what make install put there; keeps the configuration; refuses while /etc/ld.so.preload names it'
	@echo 'make check         format, layers, style, prose, generated files'
	@echo 'make check-includes compiles each C++ file by itself, to find missing includes (half an hour on two cores)'
	@echo 'make tidy          clang-tidy on what differs from main; TIDY=all for everything'
	@echo 'make format        formats every source under version control'
	@echo 'make clean         removes dist/ and the builds; make clean-all the sanitizer and fuzz builds too'
	@echo 'make setup         installs what is missing to build (Debian 12, as root); tools/setup.sh --list names it'
