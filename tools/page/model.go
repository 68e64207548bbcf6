// SPDX-License-Identifier: Apache-2.0

package page

import "time"

// Model is the content of a page.
type Model struct {
	Host    string    `json:"host,omitempty"` // the name of the node
	Version string    `json:"version,omitempty"`
	Made    time.Time `json:"made"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Rows    []Row     `json:"rows"` // one for each pod, by NAMESPACE/POD
	// Node lists the events of berth, containerd and the machine, and Away the times without a berth.
	Node []Mark `json:"node,omitempty"`
	Away []Away `json:"away,omitempty"`
	// Missing describes the gaps of the history.
	Missing []string `json:"missing,omitempty"`
	Summary []Card   `json:"summary"`
	Folded  Folded   `json:"folded"`
	Live    *Live    `json:"live,omitempty"`
	// Last is the number of the newest record that is in it.
	Last uint64 `json:"last"`
}

// Away is a time at which no berth ran. If berth was killed or the machine went down, the instant
// is not known, and From is that of the last record before.
type Away struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	What string    `json:"what"`
}

// Folded is how much was left out of a page that would have become too large.
type Folded struct {
	Entries  int `json:"entries,omitempty"`  // lines
	Attempts int `json:"attempts,omitempty"` // containers, each of which a bar of several stands for
	Rows     int `json:"rows,omitempty"`     // pods
	Logs     int `json:"logs,omitempty"`     // lines of logs
}

func (f *Folded) add(x Folded) {
	f.Entries += x.Entries
	f.Attempts += x.Attempts
	f.Rows += x.Rows
	f.Logs += x.Logs
}

// Row is the history of one pod, with all objects that had its name.
type Row struct {
	Name       string   `json:"name"` // NAMESPACE/POD, or an ID where that is not known
	Namespace  string   `json:"namespace"`
	Pod        string   `json:"pod"`
	Workload   string   `json:"workload"` // the pod's name without the part that tells it from its like
	UID        string   `json:"uid,omitempty"`
	Containers []string `json:"containers"` // names, in the order of their appearance
	// of the latest, by name; the ID of the sandbox is under ""
	IDs     map[string]string `json:"ids"`
	Bars    []Bar             `json:"bars"`
	Marks   []Mark            `json:"marks"`
	Lines   []Line            `json:"lines"`
	Crashes []Crash           `json:"crashes,omitempty"`
	// Counts are how many marks of each kind there are, those that were left out included.
	Counts map[MarkKind]int `json:"counts"`
	Folded Folded           `json:"folded"`
	Last   uint64           `json:"last"`          // the number of the newest record
	Why    []string         `json:"why,omitempty"` // the sentences of `berth why`
}

// BarKind is the kind of a bar.
type BarKind string

// The bars.
const (
	BarSandbox BarKind = "sandbox" // from READY to its end
	BarPull    BarKind = "pull"
	BarCreate  BarKind = "create"  // a sandbox or a container is made, or started
	BarRun     BarKind = "run"     // from RUNNING to the end
	BarRelease BarKind = "release" // its holds are being released
	BarFolded  BarKind = "folded"  // several attempts, of which only the number is left
)

// Bar is something that took time.
type Bar struct {
	Kind      BarKind   `json:"kind"`
	Container string    `json:"container,omitempty"` // "" for the sandbox
	Attempt   uint32    `json:"attempt"`
	From      time.Time `json:"from,omitzero"` // zero: before the beginning of the history
	To        time.Time `json:"to,omitzero"`   // zero: it goes on
	// Held is set if it does not get on, and Note is the reason; or the image that is pulled; or,
	// for BarFolded, how many marks of each kind there were.
	Held bool   `json:"held,omitempty"`
	Note string `json:"note,omitempty"`
	N    int    `json:"n,omitempty"` // of BarFolded: how many attempts
}

// MarkKind is the kind of a mark.
type MarkKind string

// The marks. Marks of an end:
const (
	ExitCompleted MarkKind = "completed"
	ExitError     MarkKind = "error"
	ExitOOM       MarkKind = "oom"
	ExitStopped   MarkKind = "stopped" // a stop was asked for, and it did not end with 0
	ExitUnknown   MarkKind = "unknown" // the code is not known
)

// Others of a pod:
const (
	OOMSurvived MarkKind = "oom-survived"
	ProbeKill   MarkKind = "probe-kill" // a container alone is stopped, while its pod goes on
	Exec        MarkKind = "exec"
	NotMade     MarkKind = "not-made" // a creation, a start or a pull failed, or was refused
	ShimLost    MarkKind = "shim-lost"
)

// Marks of the node:
const (
	BerthUp       MarkKind = "berth" // berth started, after a stop or for the first time
	BerthKilled   MarkKind = "berth-killed"
	Rebooted      MarkKind = "reboot"
	ContainerdOut MarkKind = "containerd"
	HistoryGap    MarkKind = "gap"
)

// Mark is something that happened at an instant.
type Mark struct {
	Kind      MarkKind  `json:"kind"`
	Container string    `json:"container,omitempty"`
	Attempt   uint32    `json:"attempt"`
	At        time.Time `json:"at"`
	Text      string    `json:"text"`
}

// Line is an entry in words, as in `berth timeline`.
type Line struct {
	Number    uint64    `json:"number"`
	At        time.Time `json:"at"`
	Container string    `json:"container,omitempty"`
	Attempt   uint32    `json:"attempt"`
	Kind      string    `json:"kind"`
	By        string    `json:"by,omitempty"`
	What      string    `json:"what"`
	Detail    string    `json:"detail,omitempty"`
	Err       string    `json:"error,omitempty"`

	weight weight
}

// Crash is the last of a series of crashes of one container.
type Crash struct {
	Container string    `json:"container"`
	Count     int       `json:"count"` // since it last ended well
	First     time.Time `json:"first"`
	At        time.Time `json:"at"`
	Code      uint32    `json:"code"`
	Reason    string    `json:"reason"`
	Memory    uint64    `json:"memory,omitempty"` // the most that it used, in bytes
	CPUMillis int64     `json:"cpu_ms,omitempty"`
	Log       []string  `json:"log,omitempty"` // the last lines
}

// Live is how things are now.
type Live struct {
	At         time.Time   `json:"at"`
	Conditions []Condition `json:"conditions,omitempty"`
	Warnings   []string    `json:"warnings,omitempty"`
	Node       NodeUse     `json:"node"`
	Pods       []PodUse    `json:"pods"`
	Held       []Held      `json:"held"` // what is under way
	// Missing lists questions without an answer.
	Missing []string `json:"missing,omitempty"`
}

// Condition is whether the runtime, or the network, is ready.
type Condition struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"`
}

// NodeUse is the resource use of the node. Unknown numbers are 0.
type NodeUse struct {
	CPUs      int     `json:"cpus,omitempty"`
	Load1     float64 `json:"load1,omitempty"`
	MemTotal  uint64  `json:"mem_total,omitempty"`
	MemFree   uint64  `json:"mem_available,omitempty"`
	PodsReady int     `json:"pods_ready"`
	Running   int     `json:"containers_running"`
	NanoCores uint64  `json:"pods_cpu_nanocores"` // of all pods together
	Memory    uint64  `json:"pods_memory_bytes"`
	DiskTotal uint64  `json:"disk_total,omitempty"` // of the images
	DiskFree  uint64  `json:"disk_available,omitempty"`
	// Pressure is which percentage of the last minute something waited for the CPU, memory or disks,
	// by the kernel's names: cpu, memory and io.
	Pressure map[string]float64 `json:"pressure,omitempty"`
}

// PodUse is the resource use of a pod. A nil number is not known.
type PodUse struct {
	Row        string         `json:"row"` // NAMESPACE/POD
	ID         string         `json:"id"`
	IP         string         `json:"ip,omitempty"`
	Created    time.Time      `json:"created"`
	Ready      bool           `json:"ready"`
	NanoCores  *uint64        `json:"cpu_nanocores,omitempty"`
	Memory     *uint64        `json:"memory_bytes,omitempty"`
	Containers []ContainerUse `json:"containers,omitempty"`
}

// ContainerUse is the resource use of a container.
type ContainerUse struct {
	Name      string  `json:"name"`
	ID        string  `json:"id"`
	State     string  `json:"state"`
	Image     string  `json:"image,omitempty"`
	Restarts  uint32  `json:"restarts"`
	Code      *int32  `json:"code,omitempty"` // of one that has ended
	Reason    string  `json:"reason,omitempty"`
	NanoCores *uint64 `json:"cpu_nanocores,omitempty"`
	Memory    *uint64 `json:"memory_bytes,omitempty"`
	Limit     *uint64 `json:"memory_limit_bytes,omitempty"`
	Disk      *uint64 `json:"disk_bytes,omitempty"`
}

// Held is an operation under way.
type Held struct {
	ID        string    `json:"id"`
	Row       string    `json:"row,omitempty"`
	Container string    `json:"container,omitempty"`
	Kind      string    `json:"kind"`
	Since     time.Time `json:"since"`
	Age       float64   `json:"age"` // in seconds
	Tries     int       `json:"tries"`
	Err       string    `json:"error,omitempty"`
	Late      bool      `json:"late"` // it takes long, or has failed before
	Text      string    `json:"text"` // in words, as in `berth why`
}
