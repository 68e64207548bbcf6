# SPDX-License-Identifier: Apache-2.0
#
# The programs that berth runs pods with. The Makefile includes this file.

##@ Programs

# tools/programs/go.mod pins the versions of these programs. A change there rebuilds them, and nothing
# else does. `go build -o` does not touch a file that is up to date, so the recipes do.
PINNED  := tools/programs/go.mod tools/programs/go.sum
PLUGINS := bridge loopback host-local portmap firewall

# berth runs pods with these. Tests and bench also start a containerd beside berth.
.PHONY: tools programs
programs: $(addprefix $(LIBEXEC)/,containerd-shim-runc-v2 runc pause berth-logger berth-exec berth-seccomp) $(addprefix $(CNI)/,$(PLUGINS))
tools: programs $(LIBEXEC)/containerd ## Build the shim, runc, pause, berth-logger, berth-exec, berth-seccomp, the CNI plug-ins, and containerd for tests

$(LIBEXEC)/containerd: $(PINNED)
	cd tools/programs && go build -ldflags "$(STRIP) $(VERSIONED)" -o $@ github.com/containerd/containerd/v2/cmd/containerd
	@touch $@

VERSIONED = -X github.com/containerd/containerd/v2/version.Version=$$(cd $(CURDIR)/tools/programs && \
  go list -m -f '{{.Version}}' github.com/containerd/containerd/v2)

# A trick (docs/tricks.md): containerd's shim collects its garbage every thirty seconds, whether or
# not there is some. That line is changed, in a copy, so that it waits for ever: berth's shim does
# so when there was something to do (tools/programs/shim/memory.go).
TICK := for range time.Tick(30 \* time.Second) {
$(LIBEXEC)/containerd-shim-runc-v2: copy := $(BUILD)/shim
$(LIBEXEC)/containerd-shim-runc-v2: file := vendor/github.com/containerd/containerd/v2/pkg/shim/shim.go
$(LIBEXEC)/containerd-shim-runc-v2: $(wildcard tools/programs/shim/*.go) $(PINNED) tools/programs/programs.mk
	@rm -rf $(copy) && mkdir -p $(copy) && cp -r tools/programs/go.sum tools/programs/shim $(copy)
	sed '/^tool (/,/^)/d' tools/programs/go.mod >$(copy)/go.mod && cd $(copy) && go mod vendor && grep -q '$(TICK)' $(file) && \
	  sed -i 's/$(TICK)/for range (chan time.Time)(nil) {/' $(file) && \
	  go build -mod=vendor -ldflags "$(STRIP) $(VERSIONED)" -o $@ ./shim
	@rm -rf $(copy) && touch $@

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

$(LIBEXEC)/pause: pause/pause.c tools/programs/programs.mk
	@mkdir -p $(@D)
	$(COMPILE) -DVERSION='"$(VERSION)"' -o $@ $<

$(LIBEXEC)/berth-logger: logger/logger.c tools/programs/programs.mk
	@mkdir -p $(@D)
	$(COMPILE) -o $@ $<


$(LIBEXEC)/berth-exec: join/exec.c tools/programs/programs.mk
	@mkdir -p $(@D)
	$(COMPILE) -o $@ $<

# Of the same libseccomp as runc above: it is what berth compares.
$(LIBEXEC)/berth-seccomp: join/seccomp.c tools/programs/programs.mk
	@mkdir -p $(@D)
	$(COMPILE) -o $@ $< $$(pkg-config --static --cflags --libs libseccomp)
