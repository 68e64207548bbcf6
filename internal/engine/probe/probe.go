// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
	"berth/internal/heart/pod"
)

// Config lists the handlers, and the functions that answer questions about them.
type Config struct {
	Handlers map[string]pod.Handler
	// Snapshotter is the default for handlers without one of their own.
	Snapshotter string
	// RecursiveReadOnly is set if the kernel can make mounts read-only recursively.
	RecursiveReadOnly bool
	// MapsOwners asks containerd whether a snapshotter can shift the owners of files, on this kernel.
	MapsOwners func(ctx context.Context, snapshotter string) (bool, error)
	// SandboxShim asks the shim of a handler whether it can serve a pod without a process.
	SandboxShim func(ctx context.Context, h pod.Handler) (bool, error)
	Logger      *slog.Logger
}

// Probe holds the known capabilities of handlers.
type Probe struct {
	cfg      Config
	features *answers[*ocifeatures.Features] // by OCI runtime
	holes    *answers[string]                // by handler: a warning, "" for none
	// by handler: nil, or the reason why it cannot make user namespaces
	userns *answers[error]
	shims  *answers[bool] // by handler: its pods can do without a process
}

// The time that one question may take.
const (
	runtimeTimeout = 10 * time.Second
	usernsTimeout  = 10 * time.Second
	shimTimeout    = 5 * time.Second
)

// New makes a probe that knows nothing yet. The caller runs its four questions.
func New(cfg Config) *Probe {
	p := &Probe{cfg: cfg, features: newAnswers(runtimeTimeout, askFeatures)}
	p.holes = newAnswers(runtimeTimeout, p.askHoles)
	p.userns = newAnswers(usernsTimeout, p.askUserNamespaces)
	p.shims = newAnswers(shimTimeout, p.askShim)
	return p
}

// Features returns the features that CRI advertises for a handler. It does not wait.
func (p *Probe) Features(handler string) *runtimeapi.RuntimeHandlerFeatures {
	out := &runtimeapi.RuntimeHandlerFeatures{}
	if h := p.cfg.Handlers[handler]; p.cfg.RecursiveReadOnly && isRunc(h) {
		has, ok := p.features.known(ociRuntime(h))
		out.RecursiveReadOnlyMounts = ok && slices.Contains(has.MountOptions, "rro")
	}
	cannot, ok := p.userns.known(handler)
	out.UserNamespaces = ok && cannot == nil
	if isRunc(p.cfg.Handlers[handler]) {
		cri138.Set(out, &cri138.RuntimeHandlerFeatures{CgroupNamespaces: true})
	}
	return out
}

// OCI returns the name of a handler's OCI runtime, and its versions, as [Identify] does; "" if it
// has not answered yet. It does not wait.
func (p *Probe) OCI(handler string) (name, version, libseccomp string) {
	h := p.cfg.Handlers[handler]
	if !isRunc(h) || h.Sandboxer != "" {
		return "", "", ""
	}
	has, ok := p.features.known(ociRuntime(h))
	if !ok {
		return "", "", ""
	}
	return Identify(ociRuntime(h), has.Annotations)
}

// ShimStarts returns the OCI runtime of a handler, if berth's shim knows how that one starts a
// container and can do so in its place: a release of runc 1.5. It returns "" for another one, and
// if it has not answered yet. It does not wait.
func (p *Probe) ShimStarts(handler string) string {
	name, version, _ := p.OCI(handler)
	if name != "runc" || !strings.HasPrefix(version, "1.5.") || strings.ContainsAny(version, "-+") {
		return ""
	}
	return ociRuntime(p.cfg.Handlers[handler])
}

// Identify returns the OCI runtime that a program is, runc or crun, and the versions of it and of
// its libseccomp; "" for another one. annotations are those of its features. crun under the name
// krun or crun-NAME is another one, because by that name it runs containers in virtual machines, or
// by a handler of its own.
func Identify(program string, annotations map[string]string) (name, version, libseccomp string) {
	libseccomp = annotations["io.github.seccomp.libseccomp.version"]
	if version = annotations["org.opencontainers.runc.version"]; version != "" {
		return "runc", version, libseccomp
	}
	called := filepath.Base(program)
	if version = annotations["run.oci.crun.version"]; version != "" && called != "krun" && !strings.HasPrefix(called, "crun-") {
		return "crun", version, libseccomp
	}
	return "", "", ""
}

// Warnings returns the messages for operators about the handlers, sorted.
func (p *Probe) Warnings() []string {
	return slices.DeleteFunc(slices.Sorted(p.holes.all()), func(text string) bool { return text == "" })
}

// UserNamespaces returns nil if a handler can give pods a user namespace of their own. Otherwise it
// returns the reason, as ErrNotImplemented if that is certain.
func (p *Probe) UserNamespaces(ctx context.Context, handler string) error {
	cannot, err := p.userns.of(ctx, handler)
	return cmp.Or(err, cannot)
}

// SandboxShim reports whether the shim of a handler can serve a pod without a process. It returns
// false as long as there is no answer.
func (p *Probe) SandboxShim(ctx context.Context, handler string) bool {
	can, err := p.shims.of(ctx, handler)
	return err == nil && can
}

// RunFeatures asks the OCI runtimes of the handlers for their features, until all have answered or
// ctx ends, and returns nil then.
func (p *Probe) RunFeatures(ctx context.Context) error {
	untilAnswered(ctx, p.names(isRunc), nil, func(ctx context.Context, name string) error {
		_, err := p.features.of(ctx, ociRuntime(p.cfg.Handlers[name]))
		return err
	}, func(name string, err error) {
		p.cfg.Logger.Warn("OCI runtime of a handler does not answer: its features are not advertised, retrying", "handler", name, "err", err)
	})
	return nil
}

// RunVersions asks the OCI runtimes of the handlers for their versions, until all have answered or
// ctx ends, and returns nil then.
func (p *Probe) RunVersions(ctx context.Context) error {
	hasRunc := func(h pod.Handler) bool { return h.Options == pod.OptionsRunc }
	untilAnswered(ctx, p.names(hasRunc), nil, p.holes.check, func(name string, err error) {
		p.cfg.Logger.Warn("version of the OCI runtime of a handler unknown, retrying", "handler", name, "err", err)
	})
	return nil
}

// Reconnected has everything asked again that containerd, its snapshotters and its shims have
// answered. Call it before a containerd is used: it may be of another version than the last one.
func (p *Probe) Reconnected() {
	p.userns.outdate()
	p.shims.outdate()
}

// RunUserNamespaces asks whether each handler can make user namespaces, once ready returns, until
// there is an answer about all, and again after each [Probe.Reconnected], until ctx ends.
func (p *Probe) RunUserNamespaces(ctx context.Context, ready func(context.Context) error) error {
	p.userns.run(ctx, p.names(nil), ready, func(name string, err error) {
		p.cfg.Logger.Warn("user namespaces of a runtime handler unknown: not advertised, retrying", "handler", name, "err", err)
	})
	return nil
}

// RunSandboxShims asks the shims of all handlers whether they can serve a pod without a process,
// once ready returns, until all have answered or ctx ends.
func (p *Probe) RunSandboxShims(ctx context.Context, ready func(context.Context) error) error {
	untilAnswered(ctx, p.names(nil), ready, p.shims.check, func(name string, err error) {
		p.cfg.Logger.Warn("shim of a runtime handler does not answer: its sandboxes have a pause process, retrying", "handler", name, "err", err)
	})
	return nil
}

// names returns the names of the handlers for which ones is true, sorted; nil stands for all.
func (p *Probe) names(ones func(pod.Handler) bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.cfg.Handlers)), func(name string) bool {
		return ones != nil && !ones(p.cfg.Handlers[name])
	})
}

// isRunc reports whether a handler runs an OCI runtime on this host, with the options of runc's
// shim.
func isRunc(h pod.Handler) bool { return h.HostProcess && h.Options == pod.OptionsRunc }

// ociRuntime returns the OCI runtime of a handler of runc's shim.
func ociRuntime(h pod.Handler) string { return cmp.Or(h.Binary, "runc") } // the shim's default
