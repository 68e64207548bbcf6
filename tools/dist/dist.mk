# SPDX-License-Identifier: Apache-2.0
#
# What is installed, and what a release is made of. The Makefile includes this file.

##@ Install and release

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
