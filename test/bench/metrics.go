// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// The names of the metrics in results.json.
const (
	killToExited = "kill_to_exited"
	killToEvent  = "kill_to_event"
	exitsEach    = "exits_at_once_each"
	exitsLast    = "exits_at_once_last"
	stuckOwn     = "stuck_own_exit"
	stuckOther   = "stuck_other_exit"
	pullImage    = "pull_image"

	killWhilePulling = "kill_to_exited_pulling"
	runPod           = "run_pod_sandbox"
	createContainer  = "create_container"
	startContainer   = "start_container"
	updateContainer  = "update_container"
	stopContainer    = "stop_container"
	removeContainer  = "remove_container"
	stopPod          = "stop_pod_sandbox"
	removePod        = "remove_pod_sandbox"
	runPodsAtOnce    = "run_pods_at_once"
	wholeLife        = "whole_life"
	podRunning       = "pod_running"
	cniAlone         = "cni_alone"
	listContainers   = "list_containers"
	execSync         = "exec_sync"
	listCrowd        = "list_crowd"
	listStats        = "list_stats"
	restart          = "restart"
	memory0          = "memory_0_pods"
	memory50         = "memory_50_pods"
	shims50          = "shims_50_pods"
	rss              = "_rss" // a suffix: resident instead of proportional set size
	cpu              = "_cpu" // a suffix: processor time of the daemon instead of time
)

// record adds a sample, in milliseconds or MiB.
type record func(metric string, value float64)

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// metric describes one name: its title, its place in the table and the plots, its unit.
type metric struct {
	key, title string
	group      string // of the table and the plots: exits, operations or memory
	unit       string // ms or MiB
}

func metrics(s sizes) []metric {
	return []metric{
		{killToExited, "kill to EXITED, polled", exits, "ms"},
		{killToEvent, "kill to CONTAINER_STOPPED event", exits, "ms"},
		{exitsEach, num(s.Pods*s.PerPod/2) + " exits at once: each", exits, "ms"},
		{exitsLast, num(s.Pods*s.PerPod/2) + " exits at once: the last", exits, "ms"},
		{stuckOwn, "kill to EXITED, its own delete hangs 30 s", exits, "ms"},
		{stuckOther, "kill to EXITED, " + num(s.Wedged) + " others' deletes hang", exits, "ms"},
		{killWhilePulling, "kill to EXITED while an image is pulled", exits, "ms"},
		{runPod, "RunPodSandbox", operations, "ms"},
		{createContainer, "CreateContainer", operations, "ms"},
		{startContainer, "StartContainer", operations, "ms"},
		{stopContainer, "StopContainer", operations, "ms"},
		{removeContainer, "RemoveContainer", operations, "ms"},
		{stopPod, "StopPodSandbox", operations, "ms"},
		{removePod, "RemovePodSandbox", operations, "ms"},
		{podRunning, "a pod with a container, until it runs", operations, "ms"},
		{cniAlone, "the CNI plug-ins of RunPodSandbox alone", operations, "ms"},
		{wholeLife, "all of these, without a pause", operations, "ms"},
		{wholeLife + cpu, "processor time of that, with shims, runc and plug-ins", operations, "ms"},
		{updateContainer, "UpdateContainerResources, while it runs", operations, "ms"},
		{listContainers, "ListContainers, " + num(s.Pods*s.PerPod) + " containers", operations, "ms"},
		{listCrowd, "ListContainers, " + num(s.Crowd) + " containers", operations, "ms"},
		{listCrowd + cpu, "processor time of ListContainers, " + num(s.Crowd), operations, "ms"},
		{listStats, "ListContainerStats, " + num(s.Running) + " running", operations, "ms"},
		{listStats + cpu, "processor time of ListContainerStats", operations, "ms"},
		{execSync, "ExecSync of true", operations, "ms"},
		{pullImage, fmt.Sprintf("PullImage, %d layers, %d MiB", layerCount, s.PullMiB), operations, "ms"},
		{pullImage + cpu, "processor time of PullImage", operations, "ms"},
		{runPodsAtOnce, num(s.AtOnce) + " RunPodSandbox at once, all", operations, "ms"},
		{restart, "kill -9 and start to ready, " + num(s.Total) + " pods", operations, "ms"},
		{memory0, "daemon, no pod (PSS)", memory, "MiB"},
		{memory50, "daemon, " + num(s.Total) + " pods (PSS)", memory, "MiB"},
		{memory0 + rss, "daemon, no pod (RSS)", memory, "MiB"},
		{memory50 + rss, "daemon, " + num(s.Total) + " pods (RSS)", memory, "MiB"},
		{shims50, "all shims, " + num(s.Total) + " pods (PSS)", memory, "MiB"},
	}
}

const (
	exits      = "exits"
	operations = "operations"
	memory     = "memory"
)
