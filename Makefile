# SPDX-License-Identifier: Apache-2.0
#
# `make help` lists the targets, also those of the files that are included at the end. Everything that
# is built lands in build/.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS   += --no-builtin-rules

# Go is often unpacked there without being in PATH.
export PATH := $(PATH):/usr/local/go/bin

BUILD   := $(CURDIR)/build
LIBEXEC := $(BUILD)/libexec
CNI     := $(BUILD)/cni
BERTH   := $(BUILD)/bin/berth
IMAGE   := $(BUILD)/share/berth/busybox.tar

# Where berth and the tests find the programs that are built here.
export BERTH_LIBEXEC := $(LIBEXEC)
export BERTH_CNI_BIN := $(CNI)

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  := $(shell git rev-parse -q --verify HEAD 2>/dev/null || true)
STRIP   := -s -w
LDFLAGS := $(STRIP) -X berth/internal/base/version.Version=$(VERSION) -X berth/internal/base/version.Commit=$(COMMIT)

CC := gcc
export CC

# With the race detector, each test binary, and each process that one makes of itself, would wait for a
# second at its end for reports of other threads.
export GORACE := atexit_sleep_ms=50 $(GORACE)

# One set of flags for everything, so that build, unit, lint and test-guest share one build
# cache. Whatever needs the race detector or C says CGO_ENABLED=1.
export GOFLAGS     := $(GOFLAGS) -trimpath -buildvcs=false
export CGO_ENABLED := 0

##@ Use

.PHONY: build
build: ## Build build/bin/berth
	go build -ldflags '$(LDFLAGS)' -o $(BERTH) ./cmd/berth

# Debian's protobuf-compiler does not know the option that is taken out.
CRI := staging/src/k8s.io/cri-api/pkg/apis/runtime/v1
.PHONY: proto
proto: ## Generate the Go code of api/berth/v1 and base/cri138 again, with Debian's protobuf-compiler
	cd tools/proto && go build -o $(BUILD)/proto/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	PATH=$(BUILD)/proto:$$PATH protoc -I api --go_out=. --go_opt=module=berth --go-grpc_out=. --go-grpc_opt=module=berth api/berth/v1/*.proto
	mkdir -p $(BUILD)/proto/$(CRI) && sed 's/\[debug_redact = true\]//' $$(go list -m -f '{{.Dir}}' k8s.io/cri-api)/pkg/apis/runtime/v1/api.proto > $(BUILD)/proto/$(CRI)/api.proto
	PATH=$(BUILD)/proto:$$PATH protoc -I $(BUILD)/proto -I internal/base/cri138 --go_out=. --go_opt=module=berth cri138.proto

.PHONY: run
run: programs build ## Run berth from this tree, as root: make run ARGS='serve --config FILE'
	$(BERTH) $(or $(ARGS),serve)

.PHONY: demo
demo: setup programs $(IMAGE) build ## Run a real pod and show how its containers end, as root
	$(BERTH) demo

##@ Test

# PKG, RUN and COUNT narrow unit, test and race: make unit PKG=./internal/base/lane RUN=Storm COUNT=50
PKG ?= ./...

# The packages whose tests need root, because they make namespaces, mounts and cgroups, or read
# what the kernel shows to root alone, or run a program of libexec (serve/join). Every other package is a unit test: it runs as any user,
# without downloads.
HOST := internal/host/cgroup internal/engine/ctrd internal/daemon internal/engine/embed internal/engine/layers internal/images/imagestore internal/host/logs \
  internal/host/network internal/host/pidfd internal/host/pins internal/host/podfiles internal/engine/shims test/testimage \
  internal/serve/join test/e2e test/exec test/fault test/node test/powercut

# Those that nothing else may run beside: they bound how long something takes, or look for what the
# others have left in the packet filter.
ALONE := internal/daemon internal/host/network test/e2e test/fault test/node

# Those that make test runs without the race detector. It would look at the tests alone, which takes as
# long again: they run berth as a program, or do one thing after the other.
PLAIN := internal/archtest tools/page test/e2e test/exec test/fault test/node test/powercut test/testimage

# LIMIT ends a test binary that hangs, and prints the stack of every goroutine. A test that hangs ends
# much earlier, by test/node and test/command, and alone.
# -ldflags=-w leaves out what only debuggers read, which is two fifths of the work of linking.
LIMIT      = $(or $(TIMEOUT),15m)
GOTEST     = go test
RACE       = CGO_ENABLED=1 go test -race
race: GOTEST = $(RACE)
TESTFLAGS  = -vet=all -ldflags=-w -timeout $(LIMIT) $(if $(RUN),-run '$(RUN)')

# When root runs unit tests, they run without any capability, so that root sees what every
# other user sees.
UNITFLAGS  = $(if $(filter 0,$(shell id -u)),-exec 'setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all')

# The packages whose tests need a kubelet, a cluster, a host that systemd runs, a browser, an hour, or
# to set the clock; make test-kubelet, make test-cluster, make test-systemd, make page, make soak and
# make test-guest run them.
KUBELET := test/kubelet
SANDBOX := test/gvisor
CLUSTER := test/cluster
UPGRADE := test/upgrade
SYSTEMD := test/systemd
RELEASED := test/dist
SOAK    := test/soak
BROWSER := test/browser
CLOCKS  := test/clock

# Where a test can do something in several ways, such as with containerd inside or beside berth, a
# commit takes one of them, of a long table a part, and so of a laboratory whose rooms are as they were
# five commits ago.
# PICK=all takes all, and PICK=WORD takes others than the commit does.
export BERTH_PICK := $(or $(PICK),$(BERTH_PICK),$(COMMIT))

# Those of ALONE take turns by a lock, while the next one is built. Tests within one wait more than they
# compute: twice as many as there are cores run at once. The timer of go test runs while a package
# waits for its turn, so it is off: the test binary has the limit, and begins with it once it has the
# lock.
TURNS = -timeout 0 -parallel $$((2 * $$(nproc))) -exec 'flock -o $(BUILD)/alone.lock'

# Many packages wait now and then: three of them for two cores.
AHEAD = -p $$(($$(nproc) + 1))

# $(call select,unit,host,alone) is shell code that splits the packages of PKG into three variables, with
# test/sim, the longest, at the beginning.
select = all=$$(go list $(PKG) | sort -r | grep -vxF -e berth/$(KUBELET) -e berth/$(SANDBOX) -e berth/$(CLUSTER) -e berth/$(UPGRADE) -e berth/$(SYSTEMD) -e berth/$(RELEASED) -e berth/$(BROWSER) -e berth/$(SOAK) -e berth/$(CLOCKS) || true); \
  $(1)=$$(grep -vxF $(HOST:%=-e berth/%) <<<"$$all" || true); \
  $(2)=$$(grep -xF $(patsubst %,-e berth/%,$(filter-out $(ALONE),$(HOST))) <<<"$$all" || true); \
  $(3)=$$(grep -xF $(ALONE:%=-e berth/%) <<<"$$all" || true)

.PHONY: unit race
unit: ## Test what needs neither root nor containers, in seconds: make unit PKG=./internal/heart/pod
race: ## Repeat unit tests with the race detector until one fails: make race PKG=./internal/heart/pod COUNT=100
race: TESTFLAGS += -failfast -count=$(or $(COUNT),10)
unit: TESTFLAGS += $(if $(COUNT),-count=$(COUNT))
unit race:
	@$(call select,unit,host,alone); \
	[[ $$unit ]] || { echo "make $@: the tests of $(PKG) need root: use make test PKG='$(PKG)'" >&2; exit 1; }; \
	set -x; $(GOTEST) $(TESTFLAGS) $(UNITFLAGS) $$unit

.PHONY: test
test: TESTFLAGS += -count=$(or $(COUNT),1)
test: setup tools build ## Test everything, with the race detector and real containers, as root
	@$(call select,unit,host,alone); \
	[[ -z $$host$$alone || $$EUID == 0 ]] || { echo "make test: real containers need root; make unit runs as any user" >&2; exit 1; }; \
	status=0 args=; \
	try() { \
	  local plain race; \
	  plain=$$(grep -xF $(PLAIN:%=-e berth/%) <<<"$$1" || true); \
	  race=$$(grep -vxF $(PLAIN:%=-e berth/%) <<<"$$1" || true); \
	  shift; set -x; \
	  [[ -z $$race ]] || $(RACE) $(TESTFLAGS) "$$@" $$race $$args || status=1; \
	  [[ -z $$plain ]] || go test $(TESTFLAGS) "$$@" $$plain $$args || status=1; \
	  { set +x; } 2>/dev/null; \
	}; \
	try "$$unit" $(UNITFLAGS) $(AHEAD); \
	try "$$host" $(AHEAD); \
	args='-args -test.timeout=$(LIMIT)'; \
	try "$$alone" $(TURNS); \
	exit $$status

.PHONY: sim
sim: ## Explore random schedules in virtual time: make sim ARGS='-schedules 200000' (or '-seed 42', or '-bundle FILE')
	go test $(if $(findstring -bundle,$(ARGS)),-v) -timeout 0 ./test/sim -args $(or $(ARGS),-schedules 10000)

.PHONY: e2e
e2e: ## Test real containers, as root
	@$(MAKE) test PKG='./test/node ./test/e2e'

.PHONY: fault
fault: export BERTH_ROUNDS := $(ROUNDS)
fault: ## Test real containers under faults, as root: make fault ROUNDS=10 repeats what is random
	@$(MAKE) test PKG=./test/fault TIMEOUT=$$((15 * $(or $(ROUNDS),1)))m

.PHONY: powercut
powercut: export BERTH_CUTS := $(or $(CUTS),200)
powercut: export BERTH_CUTS_FS := $(FS)
powercut: ## Cut the power in pulls and imports 200 times, as root: make powercut CUTS=20 FS=xfs
	@$(MAKE) test PKG=./test/powercut TIMEOUT=$$((10 + $(BERTH_CUTS) / 4))m

.PHONY: powercut-guest
powercut-guest: setup tools build ## Kill an emulated machine 10 times in pulls and imports: make powercut-guest KILLS=2
	test/guest/kills $(KILLS)

.PHONY: soak
soak: export BERTH_PICK := $(or $(PICK),all)
soak: export BERTH_KILLS := $(KILLS)
soak: setup tools build ## Test in every way, for hours, and kill berth 1000 times under churn, as root: make soak KILLS=100 does only that
	$(if $(KILLS),,BERTH_ROUNDS=12 $(MAKE) test PKG=./test/fault RUN=WithoutDescriptors)
	$(if $(KILLS),,$(MAKE) test TIMEOUT=30m)
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout 0 -v ./$(SOAK) | tee $(BUILD)/soak.log

.PHONY: test-guest
test-guest: setup tools build ## Test what depends on the kernel on an older one: make test-guest SUITES='test/e2e:OOM'
	test/guest/tests $(SUITES)

.PHONY: test-systemd
test-systemd: setup tools build $(BUILD)/bin/kubelet ## Test the unit files, the systemd cgroup driver and berth migrate under Debian's systemd, emulated
	test/guest/systemd $(if $(RUN),'$(RUN)')

# An input that finds something new is made smaller ten times and no more: otherwise that takes all the
# time, and a target that writes files tries five inputs in thirty seconds. One that was given few inputs
# has shown nothing, and fails.
.PHONY: fuzz
fuzz: programs ## Run every fuzz test for 30 seconds each: make fuzz FUZZTIME=5m, PKG=./internal/serve/stream for less
	@status=0; for dir in $$(go list -f '{{.Dir}}' $(PKG)); do \
	  for func in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$$dir"/*_test.go 2>/dev/null | cut -c 6-); do \
	    echo "$$dir: $$func"; \
	    go test -run '^$$' -fuzz "^$$func\$$" -fuzztime $(or $(FUZZTIME),30s) -fuzzminimizetime 10x "$$dir" | tee $(BUILD)/fuzz.log || status=1; \
	    execs=$$(sed -nE 's/.* execs: ([0-9]+) .*/\1/p' $(BUILD)/fuzz.log | tail -n 1); \
	    (($${execs:-0} >= 500)) || { echo "FAIL: $$func was given $${execs:-0} inputs, fewer than 500"; status=1; }; \
	  done; \
	done; exit $$status

##@ Set up

.PHONY: setup
setup: ## Install the Debian packages that are missing; does nothing when all are there
	@tools/setup.sh

# The image of `berth demo`. BUSYBOX is the program in it, if not that of this host.
.PHONY: image
image: $(IMAGE)
$(IMAGE): $(wildcard test/testimage/*.go) $(BUSYBOX)
	@mkdir -p $(@D)
	GOARCH= CGO_ENABLED=0 go run ./test/testimage/busybox -arch $$(go env GOARCH) -program '$(BUSYBOX)' $@

.PHONY: clean
clean: ## Remove build/
	rm -rf $(BUILD)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

include tools/programs/programs.mk tools/lab/lab.mk tools/dist/dist.mk
