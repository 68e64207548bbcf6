# SPDX-License-Identifier: Apache-2.0
#
# Every habit of this repository is a target here; `make help` lists them.
# Everything that is made lands in build/.

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

# Where the binaries of this tree find each other, for run, demo and the tests.
export BERTH_LIBEXEC := $(LIBEXEC)
export BERTH_CNI_BIN := $(CNI)

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  := $(shell git rev-parse -q --verify HEAD 2>/dev/null || true)
LDFLAGS := -s -w -X berth/internal/version.Version=$(VERSION) -X berth/internal/version.Commit=$(COMMIT)

# berth and the Go tools are static, but for runc's C part, which is static too.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false

# PKG, RUN and COUNT narrow the test habits: make race PKG=./internal/lane RUN=Storm COUNT=50
PKG   ?= ./...
RUN   ?= .
COUNT ?= 1
# A test binary that hangs is ended, with the stack of every goroutine.
TESTFLAGS := -timeout 15m -count=$(COUNT) -run '$(RUN)'

##@ Use

.PHONY: build
build: ## Build build/bin/berth
	$(GOBUILD) -ldflags '$(LDFLAGS)' -o $(BERTH) ./cmd/berth

.PHONY: run
run: tools build ## Run berth here, as root: make run ARGS='--help'
	$(BERTH) $(or $(ARGS),serve)

.PHONY: demo
demo: setup tools build ## Show berth at work, as root, without Docker, a registry or the network
	$(BERTH) demo

##@ Test

# These change the host's tables (iptables), so they are not run side by side.
HOSTWIDE := /internal/network$$|/test/node$$|/test/e2e$$|/test/fault$$
LIMIT    := $(if $(CI),timeout -k 10 30m)

.PHONY: test
test: setup tools build vet ## All tests with the race detector, as root
	@pkgs=$$(go list $(PKG)); host=$$(grep -E '$(HOSTWIDE)' <<<"$$pkgs" || true); rest=$$(grep -vE '$(HOSTWIDE)' <<<"$$pkgs" || true); \
	  export CGO_ENABLED=1; set -x; \
	  [ -z "$$rest" ] || $(LIMIT) go test -race $(TESTFLAGS) $$rest; \
	  [ -z "$$host" ] || $(LIMIT) go test -race -p 1 $(TESTFLAGS) $$host; \
	  if grep -q '/test/sim$$' <<<"$$rest"; then CGO_ENABLED=0 $(LIMIT) go test $(TESTFLAGS) berth/test/sim; fi # thousands: without the detector

.PHONY: vet
vet:
	CGO_ENABLED=0 go vet -trimpath $(PKG)

.PHONY: race
race: tools ## Tests again and again with the race detector: make race PKG=./internal/pod COUNT=100
	CGO_ENABLED=1 go test -race -failfast $(TESTFLAGS) $(PKG)

.PHONY: sim
sim: ## The whole of berth in virtual time, between fakes: make sim ARGS='-schedules 100000'
	CGO_ENABLED=1 go test -race $(TESTFLAGS) ./internal/pod ./internal/lane ./internal/feed
	CGO_ENABLED=0 go test -timeout 0 ./test/sim $(if $(ARGS),-args $(ARGS))

.PHONY: fault
fault: setup tools build ## Real containers where things go wrong: make fault ROUNDS=10 for ten times as much of what is random
	BERTH_ROUNDS=$(ROUNDS) CGO_ENABLED=1 go test -race $(if $(ROUNDS),-timeout 24h -count=$(COUNT) -run '$(RUN)',$(TESTFLAGS)) ./test/fault/...

.PHONY: e2e
e2e: setup tools build ## Real containers
	CGO_ENABLED=1 go test -race $(TESTFLAGS) ./test/node/... ./test/e2e/...

.PHONY: test-guest
test-guest: setup tools build ## What depends on the kernel, on an older one: test/guest (SUITES='test/e2e:OOM' for less)
	test/guest/tests $(SUITES)

FUZZTIME ?= 30s
.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME (30s) each
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file func; do \
	  name=$${func#func }; \
	  echo "== $$name in $$(dirname "$$file"), $(FUZZTIME)"; \
	  go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")"; \
	done

.PHONY: bench
bench: setup tools build ## berth beside containerd's CRI plug-in, as root, into bench/: make bench ARGS=-quick
	$(GOBUILD) -o $(BUILD)/bin/bench ./test/bench
	$(BUILD)/bin/bench -build $(BUILD) -out bench $(ARGS)

.PHONY: bench-go
bench-go: tools ## Go's benchmarks: make bench-go PKG=./internal/lane
	go test -run '^$$' -bench . -benchmem $(PKG)

.PHONY: lint
lint: $(BUILD)/lint/golangci-lint ## golangci-lint (the first time builds it: about 2 minutes)
	$< run --timeout 20m $(PKG)

##@ Set up

.PHONY: setup
setup: ## Install the Debian packages that are missing, if any
	@tools/setup.sh

# The versions of all of these are those of tools/go.mod: a change there rebuilds
# them, and nothing else does. `go build -o` leaves a file that is up to date
# alone, hence the touch.
PINNED  := tools/go.mod tools/go.sum
PLUGINS := bridge loopback host-local portmap firewall

.PHONY: tools
tools: $(addprefix $(LIBEXEC)/,containerd-shim-runc-v2 runc containerd pause berth-logger) $(addprefix $(CNI)/,$(PLUGINS)) ## Build the shim, runc, containerd, pause, berth-logger and the CNI plug-ins

$(LIBEXEC)/containerd-shim-runc-v2 $(LIBEXEC)/containerd: $(LIBEXEC)/%: $(PINNED)
	cd tools && version=$$(go list -m -f '{{.Version}}' github.com/containerd/containerd/v2) && \
	  $(GOBUILD) -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$$version" \
	  -o $@ github.com/containerd/containerd/v2/cmd/$*
	@touch $@

$(LIBEXEC)/runc: $(PINNED)
	cd tools && CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags 'seccomp netgo osusergo' \
	  -ldflags '-s -w -linkmode external -extldflags -static' -o $@ github.com/opencontainers/runc
	@touch $@

$(CNI)/bridge $(CNI)/loopback:   kind := main
$(CNI)/host-local:               kind := ipam
$(CNI)/portmap $(CNI)/firewall:  kind := meta
$(addprefix $(CNI)/,$(PLUGINS)): $(CNI)/%: $(PINNED)
	cd tools && $(GOBUILD) -ldflags '-s -w' -o $@ github.com/containernetworking/plugins/plugins/$(kind)/$*
	@touch $@

$(LIBEXEC)/pause: pause/pause.c
	@mkdir -p $(@D)
	gcc -std=c11 -static -Os -s -Wall -Wextra -Werror -DVERSION='"$(VERSION)"' -o $@ $<

$(LIBEXEC)/berth-logger: logger/logger.c
	@mkdir -p $(@D)
	gcc -std=c11 -static -Os -s -Wall -Wextra -Werror -o $@ $<

$(BUILD)/lint/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	cd tools/lint && $(GOBUILD) -ldflags '-s -w' -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

PREFIX  ?= /usr/local
DESTDIR ?=
.PHONY: install
install: tools build ## Install under PREFIX (/usr/local), with the systemd unit and, if there is none, /etc/berth/config.toml
	install -D -m 755 $(BERTH) $(DESTDIR)$(PREFIX)/bin/berth
	install -d $(DESTDIR)$(PREFIX)/libexec/berth/cni $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 755 $(addprefix $(LIBEXEC)/,containerd-shim-runc-v2 runc pause berth-logger) $(DESTDIR)$(PREFIX)/libexec/berth/
	install -m 755 $(addprefix $(CNI)/,$(PLUGINS)) $(DESTDIR)$(PREFIX)/libexec/berth/cni/
	sed 's|/usr/local|$(PREFIX)|g' contrib/berth.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/berth.service
	[[ -e $(DESTDIR)/etc/berth/config.toml ]] || install -D -m 644 contrib/config.toml $(DESTDIR)/etc/berth/config.toml

.PHONY: clean
clean: ## Remove build/
	rm -rf $(BUILD)

.PHONY: help
help: ## This list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
