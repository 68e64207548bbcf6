// SPDX-License-Identifier: Apache-2.0

package main

func plots(*results) map[string]string { return nil }
