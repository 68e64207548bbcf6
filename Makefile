# SPDX-License-Identifier: Apache-2.0
#
# `make help` lists the targets. Everything that is built lands in build/.

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
# what the kernel shows to root alone. Every other package is a unit test: it runs as any user,
# without downloads.
HOST := internal/host/cgroup internal/engine/ctrd internal/daemon internal/engine/embed internal/images/imagestore internal/host/logs \
  internal/host/network internal/host/pidfd internal/host/pins internal/host/podfiles internal/engine/shims test/testimage \
  test/e2e test/exec test/fault test/node test/powercut

# Those that nothing else may run beside: they bound how long something takes, or look for what the
# others have left in the packet filter.
ALONE := internal/daemon internal/host/network test/e2e test/fault test/node

# LIMIT ends a test binary that hangs, and prints the stack of every goroutine. A test that hangs ends
# much earlier, by test/node and test/command, and alone.
# -ldflags=-w leaves out what only debuggers read, which is two fifths of the work of linking.
LIMIT      = $(or $(TIMEOUT),15m)
GOTEST     = go test
race test: GOTEST = CGO_ENABLED=1 go test -race
TESTFLAGS  = -vet=all -ldflags=-w -timeout $(LIMIT) $(if $(RUN),-run '$(RUN)')

# When root runs unit tests, they run without any capability, so that root sees what every
# other user sees.
UNITFLAGS  = $(if $(filter 0,$(shell id -u)),-exec 'setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all')

# The packages whose tests need a kubelet, a cluster, a host that systemd runs, a browser, or an hour;
# make test-kubelet, make test-cluster, make test-systemd, make page and make soak run them.
KUBELET := test/kubelet
CLUSTER := test/cluster
SYSTEMD := test/systemd
RELEASED := test/dist
SOAK    := test/soak
BROWSER := test/browser

# Where a test can do something in several ways, such as with containerd inside or beside berth, a
# commit takes one of them, and of a laboratory that nobody has touched for 50 commits it takes a part.
# PICK=all takes all, and PICK=WORD takes others than the commit does.
export BERTH_PICK := $(or $(PICK),$(BERTH_PICK),$(COMMIT))

# $(call oneatatime,PACKAGES) runs the tests of one package at a time, while the next one is built.
# Those within one wait more than they compute: twice as many as there are cores run at once. The
# timer of go test runs while a package waits for its turn, so it is off: the test binary has the
# limit, and begins with it once it has the lock.
oneatatime = $(GOTEST) $(TESTFLAGS) -timeout 0 -exec 'flock -o $(BUILD)/alone.lock' -parallel $$((2 * $$(nproc))) $(1) -args -test.timeout=$(LIMIT)

# $(call select,unit,host,alone) is shell code that splits the packages of PKG into three variables.
select = all=$$(go list $(PKG) | grep -vxF -e berth/$(KUBELET) -e berth/$(CLUSTER) -e berth/$(SYSTEMD) -e berth/$(RELEASED) -e berth/$(BROWSER) -e berth/$(SOAK) || true); \
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
	status=0; set -x; \
	[[ -z $$unit ]] || $(GOTEST) $(TESTFLAGS) $(UNITFLAGS) $$unit || status=1; \
	[[ -z $$host ]] || $(GOTEST) $(TESTFLAGS) $$host || status=1; \
	[[ -z $$alone ]] || $(call oneatatime,$$alone) || status=1; \
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
	$(if $(KILLS),,$(MAKE) test PKG='./test/node ./test/e2e ./test/fault ./test/exec ./test/powercut' TIMEOUT=30m)
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout 0 -v ./$(SOAK) | tee $(BUILD)/soak.log

.PHONY: test-guest
test-guest: setup tools build ## Test what depends on the kernel on an older one: make test-guest SUITES='test/e2e:OOM'
	test/guest/tests $(SUITES)

.PHONY: test-systemd
test-systemd: setup tools build $(BUILD)/bin/kubelet ## Test the unit files, the systemd cgroup driver and berth migrate under Debian's systemd, emulated
	test/guest/systemd $(if $(RUN),'$(RUN)')

.PHONY: test-kubelet
test-kubelet: setup tools build $(BUILD)/bin/kubelet $(BUILD)/bin/pleg ## Test pods that a kubelet runs, as root (the first run builds it, which takes minutes)
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout 25m $(if $(RUN),-run '$(RUN)') ./$(KUBELET)

# containerd 1.7, which many nodes have that change to berth, and its shim. Other tests run those of $(LIBEXEC).
CONTAINERD17 := $(BUILD)/containerd-1.7
ADOPTTESTS    = $$(sed -nE 's/^func (Test[A-Za-z0-9]+)\(.*/^\1$$/p' test/e2e/adopt*_test.go | paste -sd '|')

.PHONY: test-adopt
test-adopt: export BERTH_PICK := $(or $(PICK),all)
test-adopt: export BERTH_TEST_CONTAINERD := $(CONTAINERD17)
test-adopt: setup tools build $(CONTAINERD17)/containerd $(CONTAINERD17)/containerd-shim-runc-v2 $(BUILD)/bin/kubelet $(BUILD)/bin/pleg ## Test berth adopt with containerd 1.7, as root: RUN=Faults/killed for less
	CGO_ENABLED=1 go test -race -vet=all -count=$(or $(COUNT),1) -timeout 30m -run "$(or $(RUN),$(ADOPTTESTS))" ./test/e2e
	CGO_ENABLED=1 go test -race -vet=all -count=$(or $(COUNT),1) -timeout 25m -run '$(or $(RUN),GoesOnWithAdoptedPods)' ./$(KUBELET)

# What a cluster consists of, besides etcd and CoreDNS.
KUBERNETES := $(addprefix $(BUILD)/bin/,kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl kubeadm)

# MINUTES is for how long berth is killed again and again.
.PHONY: test-cluster
test-cluster: export BERTH_CLUSTER_MINUTES := $(MINUTES)
test-cluster: setup tools build $(KUBERNETES) $(BUILD)/bin/etcd $(BUILD)/bin/coredns ## Test Kubernetes clusters on berth, as root (the first run builds them): RUN=OneNode or RUN=Kubeadm for less
	@mkdir -p $(BUILD)/cluster
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout $$((45 + $(or $(MINUTES),3)))m -v $(if $(RUN),-run '$(RUN)') ./$(CLUSTER) | tee $(BUILD)/cluster/test.log

.PHONY: page
page: ## Test the page of berth ui in a headless Chromium, with pictures of it in build/page
	@command -v chromium >/dev/null || { \
	  ((EUID == 0)) || { echo "make page: there is no chromium: install it, or run this once as root" >&2; exit 1; }; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; }
	go test $(TESTFLAGS) -count=$(or $(COUNT),1) -v ./tools/page ./$(BROWSER)

# An input that finds something new is made smaller ten times and no more: otherwise that takes all the
# time, and a target that writes files tries five inputs in thirty seconds. One that was given few inputs
# has shown nothing, and fails.
.PHONY: fuzz
fuzz: ## Run every fuzz test for 30 seconds each: make fuzz FUZZTIME=5m, PKG=./internal/serve/stream for less
	@status=0; for dir in $$(go list -f '{{.Dir}}' $(PKG)); do \
	  for func in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$$dir"/*_test.go 2>/dev/null | cut -c 6-); do \
	    echo "$$dir: $$func"; \
	    go test -run '^$$' -fuzz "^$$func\$$" -fuzztime $(or $(FUZZTIME),30s) -fuzzminimizetime 10x "$$dir" | tee $(BUILD)/fuzz.log || status=1; \
	    execs=$$(sed -nE 's/.* execs: ([0-9]+) .*/\1/p' $(BUILD)/fuzz.log | tail -n 1); \
	    (($${execs:-0} >= 500)) || { echo "FAIL: $$func was given $${execs:-0} inputs, fewer than 500"; status=1; }; \
	  done; \
	done; exit $$status

# The samples are in Go's benchmark format, and benchstat makes tables of them.
OUT ?= bench
.PHONY: bench tables
bench: setup tools build ## Compare berth with containerd's CRI plug-in, as root: ARGS=-quick OUT=/tmp/bench for less, ARGS='-scale -with crio' beside CRI-O
	go build -o $(BUILD)/bin/bench ./test/bench
	$(BUILD)/bin/bench -build $(BUILD) -out $(OUT) $(ARGS)
	@$(MAKE) tables OUT='$(OUT)'

# $(call table,NAME,ARGUMENTS) appends to the table of a file of samples, if there is one.
table = if [[ -e $(OUT)/$(1).txt ]]; then $(BUILD)/bin/benchstat $(2) $(OUT)/$(1).txt >> $(OUT)/$(1).benchstat; fi
tables: $(BUILD)/bin/benchstat ## Write the tables of what make bench has measured
	rm -f $(OUT)/*.benchstat
	$(call table,results,-col '/daemon@(containerd crio berth)')
	$(call table,scale,-col '/daemon@(containerd crio berth)')
	$(call table,scale,-filter /daemon:berth -col /pods)
	$(call table,kubelets,-col '/daemon@(containerd crio berth)')
	$(call table,output,-col '/daemon@(containerd crio berth)')
	$(call table,busy,-col '/daemon@(containerd crio berth)')
	$(call table,probes,-col '/daemon@(containerd berth-oci berth)')
	$(call table,runtimes,-col /runtime)
	$(call table,tricks,-table /of -col '/trick@(off on)')

.PHONY: conformance
conformance: setup tools build ## Write docs/conformance.md with the critest in PATH, as root: ARGS='-runtime cri-o=SOCKET,NRI-SOCKET' for another runtime
	go build -o $(BUILD)/bin/conformance ./test/conformance
	$(BUILD)/bin/conformance -build $(BUILD) $(ARGS)

.PHONY: lint
lint: $(BUILD)/lint/golangci-lint ## Run golangci-lint (the first run builds it, which takes minutes)
	$< run --timeout 20m $(PKG)

.PHONY: rules
rules: $(BUILD)/promtool ## Check the Prometheus rules, and the queries of the Grafana board, with promtool
	$< check rules contrib/prometheus/berth-rules.yaml
	$< test rules contrib/prometheus/berth-rules-test.yaml
	@{ echo 'groups: [{name: board, rules: ['; \
	  sed -n 's/^ *"expr": \(".*"\),$$/{record: a:query, expr: \1},/p' contrib/grafana/berth.json | \
	  awk '{ sub("a:query", "query:" NR); gsub(/\$$__rate_interval/, "5m"); print }'; echo ']}]'; } > $(BUILD)/board.yaml
	[[ $$(grep -c '"expr"' contrib/grafana/berth.json) == $$(grep -c record: $(BUILD)/board.yaml) ]]
	$< check rules $(BUILD)/board.yaml

##@ Set up

.PHONY: setup
setup: ## Install the Debian packages that are missing; does nothing when all are there
	@tools/setup.sh

# tools/programs/go.mod pins the versions of these programs. A change there rebuilds them, and nothing
# else does. `go build -o` does not touch a file that is up to date, so the recipes do.
PINNED  := tools/programs/go.mod tools/programs/go.sum
PLUGINS := bridge loopback host-local portmap firewall

# berth runs pods with these. Tests and bench also start a containerd beside berth.
.PHONY: tools programs
programs: $(addprefix $(LIBEXEC)/,containerd-shim-runc-v2 runc pause berth-logger berth-exec berth-seccomp) $(addprefix $(CNI)/,$(PLUGINS))
tools: programs $(LIBEXEC)/containerd ## Build the shim, runc, pause, berth-logger, berth-exec, berth-seccomp, the CNI plug-ins, and containerd for tests

$(LIBEXEC)/containerd-shim-runc-v2: package := ./shim
$(LIBEXEC)/containerd-shim-runc-v2: $(wildcard tools/programs/shim/*.go)
$(LIBEXEC)/containerd:              package := github.com/containerd/containerd/v2/cmd/containerd
$(LIBEXEC)/containerd-shim-runc-v2 $(LIBEXEC)/containerd: $(PINNED)
	cd tools/programs && version=$$(go list -m -f '{{.Version}}' github.com/containerd/containerd/v2) && \
	  go build -ldflags "$(STRIP) -X github.com/containerd/containerd/v2/version.Version=$$version" -o $@ $(package)
	@touch $@

$(LIBEXEC)/runc: $(PINNED)
	cd tools/programs && CGO_ENABLED=1 go build -tags 'seccomp netgo osusergo' \
	  -ldflags '$(STRIP) -linkmode external -extldflags -static' -o $@ github.com/opencontainers/runc
	@touch $@

$(CNI)/bridge $(CNI)/loopback:   kind := main
$(CNI)/host-local:               kind := ipam
$(CNI)/portmap $(CNI)/firewall:  kind := meta
$(addprefix $(CNI)/,$(PLUGINS)): $(CNI)/%: $(PINNED)
	cd tools/programs && go build -ldflags '$(STRIP)' -o $@ github.com/containernetworking/plugins/plugins/$(kind)/$*
	@touch $@

# How every C program is compiled: static, because a container has no libraries for it, and as one
# that is hard to make do something else. test/e2e reads what comes of it from the headers of the
# programs.
HARDENED := -fPIE -static-pie -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 \
  -Wl,-z,relro,-z,now,-z,noexecstack
COMPILE   = $(CC) -std=c11 $(HARDENED) -Os -s -Wall -Wextra -Werror

$(LIBEXEC)/pause: pause/pause.c Makefile
	@mkdir -p $(@D)
	$(COMPILE) -DVERSION='"$(VERSION)"' -o $@ $<

$(LIBEXEC)/berth-logger: logger/logger.c Makefile
	@mkdir -p $(@D)
	$(COMPILE) -o $@ $<

$(BUILD)/bin/nfpm: tools/nfpm/go.mod tools/nfpm/go.sum
	cd tools/nfpm && go build -ldflags '-s -w' -o $@ github.com/goreleaser/nfpm/v2/cmd/nfpm
	@touch $@

# The image of `berth demo`. BUSYBOX is the program in it, if not that of this host.
.PHONY: image
image: $(IMAGE)
$(IMAGE): $(wildcard test/testimage/*.go) $(BUSYBOX)
	@mkdir -p $(@D)
	GOARCH= CGO_ENABLED=0 go run ./test/testimage/busybox -arch $$(go env GOARCH) -program '$(BUSYBOX)' $@

$(LIBEXEC)/berth-exec: join/exec.c Makefile
	@mkdir -p $(@D)
	$(COMPILE) -o $@ $<

# Of the same libseccomp as runc above: it is what berth compares.
$(LIBEXEC)/berth-seccomp: join/seccomp.c Makefile
	@mkdir -p $(@D)
	$(COMPILE) -o $@ $< $$(pkg-config --static --cflags --libs libseccomp)

$(BUILD)/lint/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	cd tools/lint && go build -ldflags '-s -w' -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

$(BUILD)/bin/benchstat: tools/benchstat/go.mod tools/benchstat/go.sum
	cd tools/benchstat && go build -ldflags '-s -w' -o $@ golang.org/x/perf/cmd/benchstat
	@touch $@

$(KUBERNETES): $(BUILD)/bin/%: tools/kubelet/go.mod tools/kubelet/go.sum
	cd tools/kubelet && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	  go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o $@ k8s.io/kubernetes/cmd/$*
	@touch $@

$(CONTAINERD17)/%: tools/containerd17/go.mod tools/containerd17/go.sum
	cd tools/containerd17 && version=$$(go list -m -f '{{.Version}}' github.com/containerd/containerd) && \
	  go build -ldflags "$(STRIP) -X github.com/containerd/containerd/version.Version=$$version" -o $@ github.com/containerd/containerd/cmd/$*
	@touch $@

$(BUILD)/bin/etcd: tools/cluster/go.mod tools/cluster/go.sum
	cd tools/cluster && go build -ldflags '-s -w' -o $@ go.etcd.io/etcd/server/v3
	@touch $@

$(BUILD)/bin/coredns: tools/cluster/go.mod tools/cluster/go.sum tools/cluster/coredns/main.go
	cd tools/cluster && go build -ldflags '-s -w' -o $@ ./coredns
	@touch $@

# The part of the kubelet that reads events, for tests to look into.
$(BUILD)/bin/pleg: tools/kubelet/go.mod tools/kubelet/go.sum tools/kubelet/pleg/main.go
	cd tools/kubelet && go build -ldflags '-s -w' -o $@ ./pleg
	@touch $@

# promtool is of Debian's package, which is not installed: it would start a server.
$(BUILD)/promtool:
	@mkdir -p $(BUILD)/prometheus
	apt-get update -q
	cd $(BUILD)/prometheus && apt-get download -q prometheus && dpkg -x prometheus_*.deb .
	cp $(BUILD)/prometheus/usr/bin/promtool $@
	rm -rf $(BUILD)/prometheus

# What is installed is listed in tools/dist, for this and for releases.
DIST := $(BUILD)/bin/dist
TREE := $(BUILD)/tree
.PHONY: $(DIST)
$(DIST):
	cd tools/dist && GOARCH= go build -ldflags '-s -w' -o $@ .

PREFIX  ?= /usr/local
DESTDIR ?=
INSTALL  = $(TREE)/bin/berth install --prefix '$(PREFIX)' $(if $(DESTDIR),--root '$(DESTDIR)') $(if $(FORCE),--force)
.PHONY: install
install: setup programs $(IMAGE) build $(DIST) ## Install under PREFIX (/usr/local) what an archive has, by berth install
	$(DIST) tree -build $(BUILD) -berth $(BERTH) -out $(TREE)
	$(INSTALL)

.PHONY: uninstall
uninstall: build ## Remove what install wrote; keeps changed settings and the state of pods (see README.md)
	$(BERTH) install --uninstall --prefix '$(PREFIX)' $(if $(DESTDIR),--root '$(DESTDIR)')

##@ Release

# The compiler for each architecture, as Debian names it. Everything is static. Without build IDs,
# and with the time of the commit in the archives, who builds the same commit gets the same files.
ARCHS   ?= amd64 arm64
RELEASE := $(BUILD)/dist
cc.amd64 := x86_64-linux-gnu
cc.arm64 := aarch64-linux-gnu
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: dist
dist: setup build $(BUILD)/bin/nfpm $(DIST) ## Build archives and packages in build/dist: make dist ARCHS=amd64 KEY=private.pem
	rm -rf $(RELEASE)
	for arch in $(ARCHS); do $(MAKE) dist-one ARCH=$$arch VERSION='$(VERSION)' COMMIT='$(COMMIT)'; done
	$(DIST) seal -out $(RELEASE) -commit '$(COMMIT)' $(if $(KEY),-key '$(KEY)')

.PHONY: dist-one
dist-one: into   = $(BUILD)/$(ARCH)
dist-one: debian = $(into)/debian
dist-one:
	rm -rf $(into)/{bin,cni,libexec,share} # of another commit
	tools/dist/debian $(ARCH) $(debian)
	GOARCH=$(ARCH) PKG_CONFIG_SYSROOT_DIR=$(debian) PKG_CONFIG_LIBDIR=$(debian)/usr/lib/$(cc.$(ARCH))/pkgconfig \
	  $(MAKE) --no-print-directory image programs build BUILD=$(into) CC=$(cc.$(ARCH))-gcc STRIP='-s -w -buildid=' BUSYBOX=$(debian)/bin/busybox
	$(DIST) release -arch $(ARCH) -build $(into) -debian $(debian) -berth $(BERTH) -nfpm $(BUILD)/bin/nfpm -epoch $(SOURCE_DATE_EPOCH) -out $(RELEASE)

.PHONY: verify
verify: $(DIST) ## Verify that files are what a builder has signed: make verify DIR=build/dist KEY=public.pem
	$(DIST) verify -out '$(or $(DIR),$(RELEASE))' -key '$(KEY)'

.PHONY: test-dist
test-dist: dist ## Test what make dist builds: the same sums in another directory, and a fresh Debian, emulated; RUN=Package for less
	cd tools/dist && go vet . && go test -count=1 .
	$(if $(filter arm64,$(ARCHS)),tools/dist/emulated $(RELEASE))
	$(if $(filter arm64,$(ARCHS)),test/guest/arm64 $(RELEASE)/berth-*-linux-arm64.tar.gz)
	$(if $(RUN),,tools/dist/again $(RELEASE) $(ARCHS))
	test/guest/dist $(if $(RUN),'$(RUN)')

.PHONY: clean
clean: ## Remove build/
	rm -rf $(BUILD)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
