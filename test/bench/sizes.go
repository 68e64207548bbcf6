// SPDX-License-Identifier: Apache-2.0

package main

import "strconv"

// sizes are how often each thing is done in a round. What follows Total is done once for each
// daemon.
type sizes struct {
	Rounds  int `json:"rounds"`
	Kills   int `json:"kills"` // containers killed and polled; as many again are observed through events
	Lives   int `json:"lives"` // pods that go through their whole life
	Pods    int `json:"pods"`  // filled with PerPod containers each, half of which are killed at once
	PerPod  int `json:"per_pod"`
	Lists   int `json:"lists"`   // calls of ListContainers
	Execs   int `json:"execs"`   // calls of ExecSync
	AtOnce  int `json:"at_once"` // pods that are run at once, of Total
	Total   int `json:"total"`
	Pulls   int `json:"pulls"` // of an image with PullMiB of files
	PullMiB int `json:"pull_mib"`
	Watched int `json:"watched"` // containers whose own exit is measured, of Wedged
	Wedged  int `json:"wedged"`  // containers whose delete hangs
	Others  int `json:"others"`  // containers that are killed meanwhile
	Crowd   int `json:"crowd"`   // containers in Pods pods that are made, and listed as often as Lists says
	Running int `json:"running"` // containers of those that are started
	Stats   int `json:"stats"`   // calls of ListContainerStats
	Traced  int `json:"traced"`  // pods that go through their whole life and are traced
}

func full(rounds int) sizes {
	return sizes{
		Rounds:  rounds,
		Kills:   20,
		Lives:   14,
		Pods:    10,
		PerPod:  20,
		Lists:   100,
		Execs:   34,
		AtOnce:  20,
		Total:   50,
		Pulls:   4,
		PullMiB: 200,
		Watched: 3,
		Wedged:  10,
		Others:  20,
		Crowd:   1500,
		Running: 200,
		Stats:   30,
		Traced:  9,
	}
}

// quick is a little of everything, to try the bench. Its figures mean nothing.
func quick() sizes {
	return sizes{
		Rounds:  1,
		Kills:   3,
		Lives:   2,
		Pods:    2,
		PerPod:  4,
		Lists:   10,
		Execs:   3,
		AtOnce:  4,
		Total:   6,
		Pulls:   1,
		PullMiB: 10,
		Watched: 1,
		Wedged:  2,
		Others:  2,
		Crowd:   40,
		Running: 8,
		Stats:   10,
		Traced:  1,
	}
}

func num(k int) string { return strconv.Itoa(k) }
