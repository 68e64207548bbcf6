# SPDX-License-Identifier: Apache-2.0
#
# What is tested with programs of others, and how those are built. The Makefile includes this file.

##@ Test with programs of others

# KUBERNETES is the kubelet's version: nothing for that of the clusters, 1.37 or 1.38. Tests whose names
# end in a version need that one.
TESTED = $(BUILD)/bin/kubelet$(addprefix -,$(KUBERNETES))

.PHONY: test-kubelet
test-kubelet: export BERTH_KUBELET := $(TESTED)
test-kubelet: setup tools build $(TESTED) $(BUILD)/bin/pleg ## Test pods that a kubelet runs, as root (the first run builds it, which takes minutes): KUBERNETES=1.38 for another
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout 25m $(if $(RUN),-run '$(RUN)') $(if $(filter 1.38,$(KUBERNETES)),,-skip 'Kubelet138$$') ./$(KUBELET)

# containerd 1.7, which many nodes have that change to berth, and its shim. Other tests run those of $(LIBEXEC).
CONTAINERD17 := $(BUILD)/containerd-1.7
ADOPTTESTS    = $$(sed -nE 's/^func (Test[A-Za-z0-9]+)\(.*/^\1$$/p' test/e2e/adopt*_test.go | paste -sd '|')

.PHONY: test-adopt
test-adopt: export BERTH_PICK := $(or $(PICK),all)
test-adopt: export BERTH_TEST_CONTAINERD := $(CONTAINERD17)
test-adopt: setup tools build $(CONTAINERD17)/containerd $(CONTAINERD17)/containerd-shim-runc-v2 $(BUILD)/bin/kubelet $(BUILD)/bin/pleg ## Test berth adopt with containerd 1.7, as root: RUN=Faults/killed for less
	CGO_ENABLED=1 go test -race -vet=all -count=$(or $(COUNT),1) -timeout 30m -run "$(or $(RUN),$(ADOPTTESTS))" ./test/e2e
	CGO_ENABLED=1 go test -race -vet=all -count=$(or $(COUNT),1) -timeout 25m -run '$(or $(RUN),GoesOnWithAdoptedPods)' ./$(KUBELET)

# DAYS is how many days back, VERSIONS the commits or tags instead.
.PHONY: upgrade
upgrade: export BERTH_OLDER := $(BUILD)/older
upgrade: setup tools build ## Replace the berths of the last seven days and of each tag by this one under pods, as root: VERSIONS='v0.1.0' or DAYS=2 for less
	tools/lab/older.sh $(BERTH_OLDER) $(or $(DAYS),7) $(VERSIONS)
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout 60m -v $(if $(RUN),-run '$(RUN)') ./$(UPGRADE)

# gVisor. Its shim lowers the OOM score of the shim's process, which this build leaves out: root may lack
# CAP_SYS_RESOURCE, as in a container.
GVISOR := $(BUILD)/gvisor

.PHONY: test-gvisor
test-gvisor: setup tools build $(GVISOR)/runsc $(GVISOR)/containerd-shim-runsc-v1 ## Test pods of gVisor beside those of runc, as root (the first run builds it, which takes minutes)
	CGO_ENABLED=1 go test -race -vet=all -count=$(or $(COUNT),1) -timeout 10m $(if $(RUN),-run '$(RUN)') ./$(SANDBOX)

$(GVISOR)/runsc: tools/lab/gvisor/go.mod tools/lab/gvisor/go.sum
	cd tools/lab/gvisor && CGO_ENABLED=0 go build -ldflags '-s -w' -o $@ gvisor.dev/gvisor/runsc
	@touch $@

$(GVISOR)/containerd-shim-runsc-v1: tools/lab/gvisor/go.mod tools/lab/gvisor/go.sum
	@rm -rf $(GVISOR)/src && mkdir -p $(GVISOR)/src/v1
	cp tools/lab/gvisor/go.mod tools/lab/gvisor/go.sum $(GVISOR)/src
	from=$$(cd tools/lab/gvisor && go list -m -f '{{.Dir}}' gvisor.dev/gvisor) && \
	  sed 's|^package cli|package main|; s|^func Main|func main|; s|"gvisor.dev/gvisor/pkg/shim/v1"|"berth/tools/lab/gvisor/v1"|' \
	    $$from/shim/v1/cli/cli.go > $(GVISOR)/src/main.go && \
	  for f in $$from/pkg/shim/v1/*.go; do sed 's|^\toomScoreMax = -999|\toomScoreMax = 0|' $$f > $(GVISOR)/src/v1/$${f##*/}; done
	grep -q 'oomScoreMax = 0' $(GVISOR)/src/v1/manager.go
	cd $(GVISOR)/src && CGO_ENABLED=0 go build -ldflags '-s -w' -o $@ .
	@touch $@

# What a cluster consists of, besides etcd and CoreDNS.
CLUSTERED := $(addprefix $(BUILD)/bin/,kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl kubeadm)

# MINUTES is for how long berth is killed again and again.
.PHONY: test-cluster
test-cluster: export BERTH_CLUSTER_MINUTES := $(MINUTES)
test-cluster: setup tools build $(CLUSTERED) $(BUILD)/bin/etcd $(BUILD)/bin/coredns ## Test Kubernetes clusters on berth, as root (the first run builds them): RUN=OneNode or RUN=Kubeadm for less
	@mkdir -p $(BUILD)/cluster
	CGO_ENABLED=1 go test -race -vet=all -count=1 -timeout $$((45 + $(or $(MINUTES),3)))m -v $(if $(RUN),-run '$(RUN)') -skip KubernetesSuite ./$(CLUSTER) | tee $(BUILD)/cluster/test.log

# Kubernetes' own end-to-end suite. LABELS, FOCUS and SKIP say which of its tests, PROCS how many at
# once. With RUNTIME=containerd the nodes have containerd's CRI plug-in.
# The first run takes a minimal Debian for the images, and builds the suite, which takes minutes.
SUITE := $(addprefix $(BUILD)/suite/,e2e.test ginkgo agnhost nonewprivs regression-issue-74839 sample-apiserver localhost.crt localhost.key debian.tar bash)

.PHONY: test-conformance
test-conformance: export BERTH_SUITE_LABELS := $(or $(LABELS),Conformance)
test-conformance: export BERTH_SUITE_FOCUS := $(FOCUS)
test-conformance: export BERTH_SUITE_RUNTIME := $(RUNTIME)
test-conformance: export BERTH_SUITE_SKIP := $(SKIP)
test-conformance: export BERTH_SUITE_LIMIT := $(or $(TIMEOUT),10h)
test-conformance: export BERTH_SUITE_PROCS := $(or $(PROCS),8)
test-conformance: setup tools build $(KUBERNETES) $(BUILD)/bin/etcd $(BUILD)/bin/coredns $(SUITE) ## Run Kubernetes' conformance tests on a cluster of berth, as root: LABELS='NodeConformance && !Slow' for others
	@mkdir -p $(BUILD)/cluster
	go test -count=1 -timeout 0 -v -run KubernetesSuite ./$(CLUSTER)

$(BUILD)/suite/e2e.test: tools/lab/kubelet/go.mod tools/lab/kubelet/go.sum
	cd tools/lab/kubelet && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	  go test -vet=off -c -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o $@ k8s.io/kubernetes/test/e2e
	@touch $@

$(filter-out %.test %.tar %.crt %.key %/bash,$(SUITE)): tools/lab/kubelet/go.mod tools/lab/kubelet/go.sum
	@mkdir -p $(@D)
	cd tools/lab/kubelet && go build -ldflags '-s -w' -o $@ $$(go list tool | grep '/$(@F)$$')
	@touch $@

$(BUILD)/suite/localhost.%: tools/lab/kubelet/go.mod
	@mkdir -p $(@D)
	cp $$(cd tools/lab/kubelet && go list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost/porter)/$(@F) $@

# Debian's busybox has an older shell than the suite's, which drops variables like data-1.
$(BUILD)/suite/bash: $(BUILD)/suite/debian.tar
	tar -xOf $< ./usr/bin/bash-static > $@

# The users are those that a test of the suite looks for in the image of agnhost.
$(BUILD)/suite/debian.tar:
	@mkdir -p $(@D)
	command -v mmdebstrap >/dev/null || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends mmdebstrap; }
	mmdebstrap --variant=essential --include=bind9-dnsutils,curl,iperf,iproute2,netcat-openbsd,nginx-light,util-linux,bash-static \
	  --dpkgopt=path-exclude='/usr/share/doc/*' --dpkgopt=path-exclude='/usr/share/locale/*' --dpkgopt=path-exclude='/usr/share/man/*' \
	  --customize-hook='echo user-defined-in-image:x:1000:1000::/:/bin/sh >> "$$1/etc/passwd"' \
  --customize-hook='printf "%s\n" user-defined-in-image:x:1000: group-defined-in-image:x:50000:user-defined-in-image >> "$$1/etc/group"' \
  bookworm $@

.PHONY: page
page: ## Test the page of berth ui in a headless Chromium, with pictures of it in build/page
	@command -v chromium >/dev/null || { \
	  ((EUID == 0)) || { echo "make page: there is no chromium: install it, or run this once as root" >&2; exit 1; }; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; }
	go test $(TESTFLAGS) -count=$(or $(COUNT),1) -v ./tools/page ./$(BROWSER)

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

$(BUILD)/lint/golangci-lint: tools/lab/lint/go.mod tools/lab/lint/go.sum
	cd tools/lab/lint && go build -ldflags '-s -w' -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

$(BUILD)/bin/benchstat: tools/lab/benchstat/go.mod tools/lab/benchstat/go.sum
	cd tools/lab/benchstat && go build -ldflags '-s -w' -o $@ golang.org/x/perf/cmd/benchstat
	@touch $@

$(CLUSTERED): $(BUILD)/bin/%: tools/lab/kubelet/go.mod tools/lab/kubelet/go.sum
	cd tools/lab/kubelet && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	  go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o $@ k8s.io/kubernetes/cmd/$*
	@touch $@

$(BUILD)/bin/kubelet-1.37: tools/lab/kubelet137/go.mod tools/lab/kubelet137/go.sum
	cd tools/lab/kubelet137 && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	  go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o $@ k8s.io/kubernetes/cmd/kubelet
	@touch $@

# A kubelet of 1.38 needs a newer Go than berth, which the module proxy has, and a part of its own: see
# profiles.go.
KUBELET138 := $(BUILD)/kubelet-1.38
$(BUILD)/bin/kubelet-1.38: export GOTOOLCHAIN := go1.27.0
$(BUILD)/bin/kubelet-1.38: $(addprefix tools/lab/kubelet138/,go.mod go.sum profiles.go iptables-wrappers/pkg/iptables/iptables.go)
	@rm -rf $(KUBELET138) && mkdir -p $(KUBELET138)/kubernetes
	cd tools/lab/kubelet138 && cp -r go.mod go.sum iptables-wrappers $(KUBELET138) && from=$$(go list -m -f '{{.Dir}}' k8s.io/kubernetes) && \
	  cp -r --no-preserve=mode $$from/go.mod $$from/cmd $$from/pkg $$from/third_party $(KUBELET138)/kubernetes && \
	  cp profiles.go $(KUBELET138)/kubernetes/pkg/kubelet/kuberuntime
	cd $(KUBELET138)/kubernetes/pkg/kubelet && sed -i \
	  -e '/^func fieldSeccompProfile(/a if scmp != nil \&\& scmp.OCI != nil { return pulledProfile(scmp.OCI, profileRootPath), nil }' \
	  -e '/ := m.generateContainerConfig(/a if err == nil { err = m.pullProfile(ctx, containerConfig, podSandboxConfig) }' \
	  -e '/^\tMountOptions  *bool/a SeccompProfileOCI bool' \
	  -e '/MountOptions:  *features/a SeccompProfileOCI: features.SeccompProfileOci,' \
	  -e '/runtimeFeatures.MountOptions = /a runtimeFeatures.SeccompProfileOCI = features.SeccompProfileOCI' \
	  kuberuntime/helpers.go kuberuntime/kuberuntime_container.go container/runtime.go kubelet_node_declared_features.go && \
	  [[ $$(cat kuberuntime/*.go container/runtime.go *_features.go | grep -cE '^(if scmp|if err == nil|SeccompP|runtimeFeatures.S)') == 5 ]]
	cd $(KUBELET138) && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && go mod edit -replace k8s.io/kubernetes=./kubernetes && \
	  go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o $@ k8s.io/kubernetes/cmd/kubelet
	@touch $@

$(CONTAINERD17)/%: tools/lab/containerd17/go.mod tools/lab/containerd17/go.sum
	cd tools/lab/containerd17 && version=$$(go list -m -f '{{.Version}}' github.com/containerd/containerd) && \
	  go build -ldflags "$(STRIP) -X github.com/containerd/containerd/version.Version=$$version" -o $@ github.com/containerd/containerd/cmd/$*
	@touch $@

$(BUILD)/bin/etcd: tools/lab/cluster/go.mod tools/lab/cluster/go.sum
	cd tools/lab/cluster && go build -ldflags '-s -w' -o $@ go.etcd.io/etcd/server/v3
	@touch $@

$(BUILD)/bin/coredns: tools/lab/cluster/go.mod tools/lab/cluster/go.sum tools/lab/cluster/coredns/main.go
	cd tools/lab/cluster && go build -ldflags '-s -w' -o $@ ./coredns
	@touch $@

# The part of the kubelet that reads events, for tests to look into.
$(BUILD)/bin/pleg: tools/lab/kubelet/go.mod tools/lab/kubelet/go.sum tools/lab/kubelet/pleg/main.go
	cd tools/lab/kubelet && go build -ldflags '-s -w' -o $@ ./pleg
	@touch $@

# promtool is of Debian's package, which is not installed: it would start a server.
$(BUILD)/promtool:
	@mkdir -p $(BUILD)/prometheus
	apt-get update -q
	cd $(BUILD)/prometheus && apt-get download -q prometheus && dpkg -x prometheus_*.deb .
	cp $(BUILD)/prometheus/usr/bin/promtool $@
	rm -rf $(BUILD)/prometheus

$(BUILD)/bin/nfpm: tools/lab/nfpm/go.mod tools/lab/nfpm/go.sum
	cd tools/lab/nfpm && go build -ldflags '-s -w' -o $@ github.com/goreleaser/nfpm/v2/cmd/nfpm
	@touch $@
