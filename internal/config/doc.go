// SPDX-License-Identifier: Apache-2.0

// Package config is berth's configuration: a TOML file, every setting documented where it is
// declared, strictly read.
//
// # Promises
//
//   - `berth config default` is generated from the declarations here and cannot drift from them.
//   - A key that is not known is an error that names it, its line and the nearest known one.
//   - [Config.Check] finds values that cannot work before anything starts.
package config
