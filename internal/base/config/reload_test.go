// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What holds at once is taken, and everything else that differs is named, so that nothing seems to
// have been taken that was not.
func TestReloadTakesWhatItCanAndNamesTheRest(t *testing.T) {
	old := Default()
	old.Image.Auth = map[string]Auth{"same.example": {"me", "x"}, "old.example": {"me", "x"}, "new.example": {"me", "x"}}
	next := Default()
	next.Log.Level = "debug"
	next.Image.Auth = map[string]Auth{"same.example": {"me", "x"}, "new.example": {"me", "y"}}
	next.Image.Pinned, next.Image.PreloadDir, next.Image.DiscardBlobs = []string{"app"}, "/archives", true
	next.Image.PolicyFile, next.Image.PolicyFailure = "/policy.toml", PolicyOpen
	next.Root, next.Network.BinDirs = "/elsewhere", []string{"/bin"}
	next.Runtimes["crun"] = Runtime{Type: "io.containerd.runc.v2"}
	runc := next.Runtimes["runc"]
	runc.SystemdCgroup = true
	next.Runtimes["runc"] = runc
	got, changed, restart := old.Reload(next)
	if want := []string{"log.level", "image.pinned", "image.preload_dir", "image.discard_blobs", "image.policy_file", "image.policy_failure", `image.auth."new.example".password`, `image.auth."old.example"`}; !slices.Equal(changed, want) {
		t.Errorf("changed %q, want %q", changed, want)
	}
	if want := []string{"root", "network.bin_dirs", "runtimes.crun", "runtimes.runc.systemd_cgroup"}; !slices.Equal(restart, want) {
		t.Errorf("restart for %q, want %q", restart, want)
	}
	if len(got.Image.Pinned) != 1 || got.Image.PreloadDir != "/archives" || !got.Image.DiscardBlobs || got.Image.PolicyFile != "/policy.toml" || got.Image.PolicyFailure != PolicyOpen {
		t.Errorf("%+v", got.Image)
	}
	if got.Log.Level != "debug" || got.Image.Auth["new.example"].Password != "y" || got.Root != old.Root || len(got.Runtimes) != 1 {
		t.Errorf("%+v", got)
	}
	if _, changed, restart = old.Reload(old); len(changed)+len(restart) != 0 {
		t.Errorf("the same settings differ in %q %q", changed, restart)
	}
}

// Every setting is compared: one that is added later cannot be forgotten.
func TestEverySettingIsCompared(t *testing.T) {
	c := Default()
	for _, key := range c.keys() {
		for _, value := range []string{"7", "7s", "true", "false", "/seven", `["/seven"]`} {
			next := Default()
			if next.Set(key, value) != nil {
				continue
			}
			_, changed, restart := c.Reload(next)
			if all := slices.Concat(changed, restart); len(all) > 0 && !slices.Equal(all, []string{key}) {
				t.Errorf("%s = %s: %q differ", key, value, all)
			}
		}
	}
}

// The file was installed with a mode that lets everybody read the passwords of registries in it.
func TestAConfigurationFileThatIsOpenToOthersIsNamed(t *testing.T) {
	dir := t.TempDir()
	path, drop := filepath.Join(dir, "config.toml"), filepath.Join(dir, "conf.d")
	if err := os.Mkdir(drop, 0o700); err != nil {
		t.Fatal(err)
	}
	const plain, secret = "root = '/x'", "[image.auth.'registry.example']\nusername = 'me'\npassword = 'x'"
	for _, tt := range []struct {
		mode os.FileMode
		text string
		want string // "" for nothing
	}{
		{0o600, secret, ""},
		{0o644, plain, ""},
		{0o644, secret, "passwords"},
		{0o640, secret, "passwords"},
		{0o620, plain, "become root"},
		{0o666, secret, "become root"},
	} {
		for _, at := range []string{path, filepath.Join(drop, "10.toml")} {
			write(t, path, "")
			write(t, at, tt.text)
			if err := os.Chmod(at, tt.mode); err != nil {
				t.Fatal(err)
			}
			l, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(l.CheckFiles()...)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "chmod 600 "+at)) {
				t.Errorf("%s with mode %o: %v", at, tt.mode, err)
			}
			_ = os.Remove(at)
		}
	}
	write(t, path, secret) // the password is there, and the drop-in file is open to others without one
	write(t, filepath.Join(drop, "10.toml"), plain)
	if err := errors.Join(os.Chmod(path, 0o600), os.Chmod(filepath.Join(drop, "10.toml"), 0o644), os.Chmod(drop, 0o770)); err != nil {
		t.Fatal(err)
	}
	l, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if errs := l.CheckFiles(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "chmod 700 "+drop) {
		t.Errorf("got %v", errs)
	}
}
