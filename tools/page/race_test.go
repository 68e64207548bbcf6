// SPDX-License-Identifier: Apache-2.0

//go:build race

package page_test

func init() { dayPods = 100 } // the race detector takes five times as long, and size is none of its business
