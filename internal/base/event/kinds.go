// SPDX-License-Identifier: Apache-2.0

package event

import "reflect"

// kinds has one event of each type.
var kinds = []Event{
	// life.go
	SandboxReady{},
	SandboxNotMade{},
	ContainerCreated{},
	ContainerNotMade{},
	HostPathSilent{},
	Degraded{},
	ContainerRunning{},
	StartFailed{},
	StartUnanswered{},
	ExecPending{},
	TaskRetried{},
	ShimRestarted{},
	CheckpointLeft{},
	StartTakenBack{},
	StopRequested{},
	StopGoesOn{},
	StopSignalLost{},
	RemovalRequested{},
	TakesLong{},
	TookLong{},
	// ends.go
	ExitReported{},
	ExitDoubted{},
	ExitFound{},
	ExitSettled{},
	ExitCorrected{},
	FirstThreadDiffers{},
	CodesDiffer{},
	CodeUnconfirmed{},
	ShimDied{},
	ProcessUnanswered{},
	CgroupUnread{},
	KillFailed{},
	EndHeld{},
	LeftoversRemain{},
	LeftoversNotKilled{},
	ReleasedAroundShim{},
	PluginsNotNotified{},
	OOMKillSurvived{},
	OOMKillReported{},
	OOMNotWatched{},
	OOMCounterUnread{},
	OOMCounterGone{},
	OOMKillOfPod{},
	// release.go
	AttemptFailed{},
	AttemptPostponed{},
	AttemptPanicked{},
	Released{},
	Removed{},
	OrphanFound{},
	OrphanRemoved{},
	OrphansUnlisted{},
	// records.go
	RecordDamaged{},
	RecordsMended{},
	RecordsLost{},
	StatusDeleted{},
	NameTaken{},
	LabelNotReserved{},
	NotCompared{},
	Compared{},
	ProcessNotIdentified{},
	TaskUnclear{},
	StartNotRecorded{},
	StartNotKept{},
	LateTask{},
	LateTaskNotRecorded{},
	ContainerdConnected{},
	ContainerdLost{},
	ContainerdAbsent{},
	// output.go
	OutputUnread{},
	OutputHeld{},
	OutputResumed{},
	OutputEndUnrecorded{},
	OutputMayMiss{},
	LoggerKilled{},
	LoggerReplaced{},
	LoggerReplacedLate{},
	LoggerNotReplaced{},
	LoggerSilent{},
	LogTruncated{},
	LogDeleted{},
	LogDraining{},
	LogNotDrained{},
	LogPumpEnded{},
	// images.go
	PullBegan{},
	ImagePulled{},
	ImageRemoved{},
	ProfilePulled{},
	ProfileNotPulled{},
	ProfileRemoved{},
	ImageRefused{},
	ImageNotPulled{},
	// resources.go
	PodResourcesRecorded{},
	ResourcesRecorded{},
	ResourcesApplied{},
	ResourcesRefused{},
	ResourcesNotTakenBack{},
	OOMScoreKept{},
	HostPortsRestored{},
	HostPortsLost{},
	// access.go
	AccessBegan{},
	AccessEnded{},
	AccessRefused{},
	// history.go
	ClockSet{},
	BerthStarted{},
	BerthStopped{},
	MachineShutDown{},
	ContainerCrashed{},
	ExitRecalled{},
	EntriesLost{},
	EntriesLeftOut{},
	HistoryUnread{},
}

// types are the types of events by their names.
var types = func() map[string]reflect.Type {
	m := map[string]reflect.Type{}
	for _, e := range kinds {
		m[Kind(e)] = reflect.TypeOf(e)
	}
	return m
}()
