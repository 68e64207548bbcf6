// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"slices"
	"strings"
)

// reloadable are the settings that hold at once when the configuration is read again, and the
// tables of such settings.
var reloadable = []string{"log.level", "image.auth", "image.pinned", "image.preload_dir", "image.discard_blobs", "image.policy_file", "image.policy_failure"}

// Reload returns the settings that hold after next was read while c held: c with those settings of
// next that need no restart. changed names these where they differ, and restart names all others
// that do. Neither has a value: some are secret.
func (c Config) Reload(next Config) (merged Config, changed, restart []string) {
	for _, key := range differences("", reflect.ValueOf(c), reflect.ValueOf(next)) {
		if slices.ContainsFunc(reloadable, func(r string) bool { return key == r || strings.HasPrefix(key, r+".") }) {
			changed = append(changed, key)
		} else {
			restart = append(restart, key)
		}
	}
	merged = c
	merged.Log.Level, merged.Image.Auth = next.Log.Level, next.Image.Auth
	merged.Image.Pinned, merged.Image.PreloadDir = next.Image.Pinned, next.Image.PreloadDir
	merged.Image.DiscardBlobs = next.Image.DiscardBlobs
	merged.Image.PolicyFile, merged.Image.PolicyFailure = next.Image.PolicyFile, next.Image.PolicyFailure
	return merged, changed, restart
}

// differences returns the names of the settings below a table that differ, in the order in which
// they are declared.
func differences(prefix string, a, b reflect.Value) (keys []string) {
	for i := range a.NumField() {
		f := a.Type().Field(i)
		key := prefix + f.Tag.Get("toml")
		x, y := a.Field(i), b.Field(i)
		switch {
		case f.Tag.Get("doc") != "":
			if !reflect.DeepEqual(x.Interface(), y.Interface()) {
				keys = append(keys, key)
			}
		case x.Kind() == reflect.Map:
			keys = append(keys, entries(key, x, y)...)
		default:
			keys = append(keys, differences(key+".", x, y)...)
		}
	}
	return keys
}

// entries is differences for a map of tables. A table that only one of the two has is named as a
// whole.
func entries(key string, a, b reflect.Value) (keys []string) {
	var names []string
	for _, k := range slices.Concat(a.MapKeys(), b.MapKeys()) {
		names = append(names, k.String())
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		x, y := a.MapIndex(reflect.ValueOf(name)), b.MapIndex(reflect.ValueOf(name))
		if table := key + "." + quoteKey(name); x.IsValid() && y.IsValid() {
			keys = append(keys, differences(table+".", x, y)...)
		} else {
			keys = append(keys, table)
		}
	}
	return keys
}
