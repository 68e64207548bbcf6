// SPDX-License-Identifier: Apache-2.0

// Package apparmor keeps the default AppArmor profile of containers loaded.
//
// # Promises
//
//   - Nothing waits for the profile when berth starts. A container that needs it waits for ten
//     seconds at most, and is refused if it cannot be loaded.
//   - A profile that was removed is loaded again with the next container.
//
// # Never
//
// The package confines nothing itself: the OCI runtime applies the profile. It leaves a loaded
// profile as it is.
//
// # To look at it live
//
// `berth status` shows whether the profile could not be loaded; aa-status lists the loaded
// profiles.
package apparmor

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"

	"berth/internal/base/retry"
)

// Profile is the name of the default profile, which other runtimes use as well.
const Profile = "cri-containerd.apparmor.d"

// loadTimeout bounds the loading of a profile, which a program does.
const loadTimeout = 10 * time.Second

// AppArmor loads the default profile into the kernel. Its methods may be called from any goroutine.
type AppArmor struct {
	load func(profile string) error // does nothing for a profile that is loaded

	mu sync.Mutex
	// closed when loading ends, with or without an error; nil while no load is in flight
	loading chan struct{}
	err     error // of the last time
}

// Open begins to load the default profile. It returns nil if AppArmor is off, or is not for this
// host to use: in a container, for example, which has no access to the kernel's profiles. A profile
// that cannot be loaded is logged: pods that it is to confine are refused until it can be.
func Open(log *slog.Logger) *AppArmor {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err != nil || len(b) == 0 || b[0] != 'Y' {
		return nil
	}
	if _, err := os.Stat("/sys/kernel/security/apparmor"); errors.Is(err, fs.ErrNotExist) {
		log.Warn("this kernel has AppArmor, but its profiles are not at /sys/kernel/security/apparmor: containers run without it")
		return nil
	}
	a := &AppArmor{load: apparmor.LoadDefaultProfile}
	go func() { // berth serves meanwhile
		if err := a.Ensure(); err != nil {
			log.Error("default AppArmor profile not loaded: containers that need it are refused", "profile", Profile, "err", err)
		}
	}()
	return a
}

// Ensure loads the profile if it is not loaded: an administrator may have removed it. Concurrent
// calls share one load, and wait for it within a bound.
func (a *AppArmor) Ensure() error {
	a.mu.Lock()
	loading := a.loading
	if loading == nil {
		loading = make(chan struct{})
		a.loading = loading
		go func() {
			err := a.load(Profile)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.err, a.loading = err, nil
			close(loading)
		}()
	}
	a.mu.Unlock()
	if retry.Sleep(loading, loadTimeout) {
		return fmt.Errorf("load AppArmor profile %s: apparmor_parser has not ended within %s", Profile, loadTimeout)
	}
	return a.last()
}

func (a *AppArmor) last() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Warning returns a message for the operator if the profile could not be loaded, and "" otherwise.
func (a *AppArmor) Warning() string {
	if a == nil || a.last() == nil {
		return ""
	}
	return fmt.Sprintf("the default AppArmor profile cannot be loaded, and containers that do not ask for another one are refused; install apparmor_parser: %v", a.last())
}
