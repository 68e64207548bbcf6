// SPDX-License-Identifier: Apache-2.0

package main

import "strconv"

// sizes are how much of everything is done: once a round, but for the last three, which are once a daemon.
type sizes struct {
	Rounds  int `json:"rounds"`
	Kills   int `json:"kills"` // containers killed and polled; as many again are heard of by events
	Lives   int `json:"lives"` // pods through their whole life
	Pods    int `json:"pods"`  // filled with PerPod containers each, half of which are killed at once
	PerPod  int `json:"per_pod"`
	Lists   int `json:"lists"`   // calls
	AtOnce  int `json:"at_once"` // pods run at once, of Total
	Total   int `json:"total"`
	Watched int `json:"watched"` // containers whose delete hangs and that are watched, of Wedged
	Wedged  int `json:"wedged"`
	Others  int `json:"others"` // containers killed meanwhile
}

func full(rounds int) sizes {
	return sizes{Rounds: rounds, Kills: 20, Lives: 14, Pods: 10, PerPod: 20, Lists: 100, AtOnce: 20, Total: 50, Watched: 3, Wedged: 10, Others: 20}
}

// quick is for trying the bench, not for figures.
func quick() sizes {
	return sizes{Rounds: 1, Kills: 3, Lives: 2, Pods: 2, PerPod: 4, Lists: 10, AtOnce: 4, Total: 6, Watched: 1, Wedged: 2, Others: 2}
}

func num(k int) string { return strconv.Itoa(k) }
