// SPDX-License-Identifier: Apache-2.0

// Package config is berth's configuration: a TOML file and its drop-in files, whose settings are
// documented where they are declared.
//
// # Promises
//
//   - `berth config default` is generated from the declarations in this package and cannot drift
//     from them.
//   - A key that is not known is an error that names it, its line and the known key that is spelled
//     most like it.
//   - [Config.Check] reports values that cannot work before anything starts.
//   - Each value that is not a default has a place, which [Loaded.Check] and [Loaded.Write] name: a
//     file and a line. A directory of drop-in files that cannot be read is an error, and never
//     taken for an empty one.
package config
