// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/event"
)

// allow returns an event with those of its fields that are written, or false if its kind is not
// written at all. Each field that is taken over is named here, and a text passes one of the
// functions of words.go: an event that gets another field does not have it in a bundle until it is
// added.
func allow(e event.Event) (event.Event, bool) {
	for _, f := range []func(event.Event) event.Event{allowLife, allowEnd, allowStep, allowRest} {
		if a := f(e); a != nil {
			return a, true
		}
	}
	return nil, false
}

func allowLife(e event.Event) event.Event {
	switch e := e.(type) {
	case event.SandboxReady:
		return event.SandboxReady{Names: namesOf(e.Names), By: clientOf(e.By), Took: e.Took, Pinned: e.Pinned}
	case event.SandboxNotMade:
		return event.SandboxNotMade{Names: namesOf(e.Names), Err: cause(e.Err)}
	case event.ContainerCreated:
		return event.ContainerCreated{Names: namesOf(e.Names), By: clientOf(e.By), Took: e.Took}
	case event.ContainerNotMade:
		return event.ContainerNotMade{Names: namesOf(e.Names), Err: cause(e.Err)}
	case event.HostPathSilent:
		return event.HostPathSilent{Path: other}
	case event.Degraded:
		return event.Degraded{What: other, Why: cause(e.Why)}
	case event.ContainerRunning:
		return event.ContainerRunning{By: clientOf(e.By), Pid: e.Pid, Took: e.Took}
	case event.StartFailed:
		return event.StartFailed{Err: cause(e.Err)}
	case event.StartUnanswered:
		return event.StartUnanswered{Err: cause(e.Err)}
	case event.ExecPending:
		return event.ExecPending{Still: other}
	case event.TaskRetried:
		return event.TaskRetried{Err: cause(e.Err)}
	case event.ShimRestarted:
		return e
	case event.CheckpointLeft:
		return event.CheckpointLeft{Err: cause(e.Err)}
	case event.StartTakenBack:
		return e
	case event.TookLong:
		return event.TookLong{What: term(e.What), By: clientOf(e.By), Took: e.Took}
	case event.StopRequested:
		return event.StopRequested{By: clientOf(e.By), Pod: e.Pod, Shutdown: e.Shutdown, Timeout: e.Timeout}
	case event.RemovalRequested:
		return event.RemovalRequested{By: clientOf(e.By)}
	case event.StopSignalLost:
		return event.StopSignalLost{Err: cause(e.Err)}
	}
	return nil
}

func allowEnd(e event.Event) event.Event {
	switch e := e.(type) {
	case event.ExitReported:
		return event.ExitReported{Exit: exitOf(e.Exit)}
	case event.ExitDoubted:
		return event.ExitDoubted{Exit: exitOf(e.Exit), Process: term(e.Process)}
	case event.ExitFound:
		return e
	case event.ExitSettled:
		return event.ExitSettled{Exit: exitOf(e.Exit), Lag: e.Lag, Evidence: evidenceOf(e.Evidence)}
	case event.ExitCorrected:
		return event.ExitCorrected{Exit: exitOf(e.Exit), Evidence: evidenceOf(e.Evidence)}
	case event.FirstThreadDiffers:
		return event.FirstThreadDiffers{Code: e.Code, Witness: term(e.Witness), First: e.First}
	case event.CodesDiffer:
		return event.CodesDiffer{
			Code:         e.Code,
			Witness:      term(e.Witness),
			Other:        e.Other,
			OtherWitness: term(e.OtherWitness),
		}
	case event.CodeUnconfirmed:
		return e
	case event.ExitRecalled:
		return event.ExitRecalled{Exit: exitOf(e.Exit)}
	case event.ShimDied:
		return e
	case event.ProcessUnanswered:
		return event.ProcessUnanswered{Err: cause(e.Err)}
	case event.CgroupUnread:
		return event.CgroupUnread{Err: cause(e.Err)}
	case event.KillFailed:
		return event.KillFailed{Err: cause(e.Err)}
	case event.EndHeld:
		return event.EndHeld{By: other, Since: e.Since, Err: cause(e.Err)}
	case event.LeftoversRemain:
		return event.LeftoversRemain{Err: cause(e.Err)}
	case event.ReleasedAroundShim:
		return event.ReleasedAroundShim{Shim: other, Err: cause(e.Err)}
	case event.LeftoversNotKilled:
		return event.LeftoversNotKilled{Err: cause(e.Err)}
	case event.PluginsNotNotified:
		return event.PluginsNotNotified{Waiting: e.Waiting}
	case event.OOMKillSurvived:
		return event.OOMKillSurvived{Kills: e.Kills, Limit: term(e.Limit)}
	case event.OOMKillReported, event.OOMKillOfPod:
		return e
	case event.OOMNotWatched:
		return event.OOMNotWatched{Err: cause(e.Err)}
	case event.OOMCounterUnread:
		return event.OOMCounterUnread{Err: cause(e.Err)}
	case event.OOMCounterGone:
		return event.OOMCounterGone{Err: cause(e.Err)}
	case event.ContainerCrashed:
		return event.ContainerCrashed{
			Names: namesOf(e.Names),
			Count: e.Count,
			First: crashOf(e.First),
			Last:  crashOf(e.Last),
		}
	}
	return nil
}

func allowStep(e event.Event) event.Event {
	switch e := e.(type) {
	case event.AttemptFailed:
		return event.AttemptFailed{Step: term(e.Step), Attempt: e.Attempt, Err: cause(e.Err)}
	case event.AttemptPostponed:
		return event.AttemptPostponed{Step: term(e.Step), Attempt: e.Attempt, Until: other}
	case event.AttemptPanicked:
		return event.AttemptPanicked{Lane: term(e.Lane), Attempt: e.Attempt, Err: cause(e.Err)}
	case event.Released:
		return event.Released{What: theTerms(e.What), Holds: theTerms(e.Holds)}
	case event.Removed, event.OrphanFound, event.OrphanRemoved:
		return e
	case event.OrphansUnlisted:
		return event.OrphansUnlisted{What: other, Err: cause(e.Err)}
	case event.HostPortsLost:
		return event.HostPortsLost{Err: cause(e.Err)}
	case event.RecordDamaged:
		return event.RecordDamaged{Err: cause(e.Err)}
	case event.RecordsMended:
		return event.RecordsMended{Bits: e.Bits}
	case event.RecordsLost:
		return event.RecordsLost{}
	case event.StatusDeleted:
		return e
	case event.NameTaken:
		return event.NameTaken{Names: namesOf(e.Names)}
	case event.LabelNotReserved:
		return event.LabelNotReserved{Err: cause(e.Err)}
	case event.NotCompared:
		return event.NotCompared{Err: cause(e.Err)}
	case event.Compared:
		return event.Compared{
			Phase:   term(e.Phase),
			Task:    term(e.Task),
			Process: term(e.Process),
			Action:  term(e.Action),
		}
	case event.ProcessNotIdentified:
		return event.ProcessNotIdentified{Err: cause(e.Err)}
	case event.TaskUnclear:
		return event.TaskUnclear{Err: cause(e.Err)}
	case event.StartNotRecorded:
		return event.StartNotRecorded{Err: cause(e.Err)}
	case event.StartNotKept:
		return event.StartNotKept{Err: cause(e.Err)}
	case event.LateTask, event.ContainerdConnected:
		return e
	case event.LateTaskNotRecorded:
		return event.LateTaskNotRecorded{Err: cause(e.Err)}
	case event.ContainerdLost:
		return event.ContainerdLost{Err: cause(e.Err)}
	case event.ContainerdAbsent:
		return event.ContainerdAbsent{Err: cause(e.Err)}
	}
	return nil
}

func allowRest(e event.Event) event.Event {
	switch e := e.(type) {
	case event.OutputUnread:
		return event.OutputUnread{Err: cause(e.Err)}
	case event.OutputHeld:
		return event.OutputHeld{Stream: term(e.Stream), Err: cause(e.Err)}
	case event.OutputResumed:
		return event.OutputResumed{Stream: term(e.Stream)}
	case event.OutputEndUnrecorded:
		return event.OutputEndUnrecorded{Stream: term(e.Stream), Err: cause(e.Err)}
	case event.OutputMayMiss:
		return event.OutputMayMiss{Stream: term(e.Stream)}
	case event.LoggerKilled, event.LoggerReplaced, event.LoggerReplacedLate, event.LogDeleted, event.OOMScoreKept, event.HostPortsRestored,
		event.PodResourcesRecorded, event.BerthStopped, event.MachineShutDown:
		return e
	case event.LoggerNotReplaced:
		return event.LoggerNotReplaced{Err: cause(e.Err)}
	case event.LoggerSilent:
		return event.LoggerSilent{Err: cause(e.Err)}
	case event.LogTruncated:
		return event.LogTruncated{From: e.From, To: e.To}
	case event.LogDraining:
		return event.LogDraining{Err: cause(e.Err)}
	case event.LogNotDrained:
		return event.LogNotDrained{Err: cause(e.Err)}
	case event.LogPumpEnded:
		return event.LogPumpEnded{Err: cause(e.Err)}
	case event.PullBegan:
		return event.PullBegan{By: clientOf(e.By), Image: imageOf(e.Image)}
	case event.ImagePulled:
		return event.ImagePulled{Image: imageOf(e.Image), Took: e.Took}
	case event.ImageRemoved:
		names := make([]string, len(e.Names))
		for i, name := range e.Names {
			names[i] = imageOf(name)
		}
		return event.ImageRemoved{By: clientOf(e.By), Image: imageOf(e.Image), Names: names, Stays: e.Stays}
	case event.ImageRefused:
		return event.ImageRefused{Container: match(dnsName, e.Container), Err: cause(e.Err)}
	case event.ImageNotPulled:
		return event.ImageNotPulled{Image: imageOf(e.Image), Took: e.Took, Err: cause(e.Err)}
	case event.ResourcesRecorded:
		return event.ResourcesRecorded{Version: e.Version}
	case event.ResourcesApplied:
		return event.ResourcesApplied{Version: e.Version}
	case event.ResourcesRefused:
		return event.ResourcesRefused{Version: e.Version, Err: cause(e.Err)}
	case event.ResourcesNotTakenBack:
		return event.ResourcesNotTakenBack{Version: e.Version, Err: cause(e.Err)}
	case event.AccessBegan:
		return event.AccessBegan{
			By:       clientOf(e.By),
			Access:   term(e.Access),
			Port:     e.Port,
			Terminal: e.Terminal,
		}
	case event.AccessEnded:
		return event.AccessEnded{
			Access: term(e.Access),
			Code:   e.Code,
			Took:   e.Took,
			In:     e.In,
			Out:    e.Out,
			Err:    cause(e.Err),
		}
	case event.AccessRefused:
		return event.AccessRefused{By: clientOf(e.By), Access: term(e.Access), Err: cause(e.Err)}
	case event.ClockSet:
		return e
	case event.BerthStarted:
		return event.BerthStarted{
			Version: match(release, e.Version),
			Boot:    match(uuid, e.Boot),
			After:   after(e.After),
		}
	case event.EntriesLost:
		return event.EntriesLost{
			Count: e.Count,
			From:  e.From,
			To:    e.To,
			Err:   cause(e.Err),
		}
	case event.EntriesLeftOut:
		return event.EntriesLeftOut{Count: e.Count}
	case event.HistoryUnread:
		return event.HistoryUnread{File: other, Err: cause(e.Err)}
	}
	return nil
}

// clientOf returns a client, with the name of its program only if that is one of those that call
// berth: a program chooses its name.
func clientOf(c event.Client) event.Client {
	return event.Client{Pid: c.Pid, UID: c.UID, Name: term(c.Name)}
}

func exitOf(e event.Exit) event.Exit {
	return event.Exit{
		Code:        e.Code,
		Measured:    e.Measured,
		Reason:      term(e.Reason),
		Witness:     term(e.Witness),
		FirstThread: e.FirstThread,
		Ended:       e.Ended,
		OOM:         e.OOM,
		Limit:       term(e.Limit),
	}
}

func crashOf(c event.Crash) event.Crash {
	return event.Crash{
		Exit:    exitOf(c.Exit),
		Attempt: c.Attempt,
		Memory:  c.Memory,
		CPU:     c.CPU,
	}
}

func evidenceOf(e event.Evidence) event.Evidence {
	a := event.Evidence{
		Kills:    e.Kills,
		Stops:    e.Stops,
		GivenUp:  e.GivenUp,
		OOMKills: e.OOMKills,
		OOMFrom:  e.OOMFrom,
		OOMTo:    e.OOMTo,
		OOMLimit: term(e.OOMLimit),
	}
	for _, s := range e.Said {
		a.Said = append(a.Said, event.Said{
			At:          s.At,
			Witness:     term(s.Witness),
			Code:        s.Code,
			Measured:    s.Measured,
			FirstThread: s.FirstThread,
			Ended:       s.Ended,
			Hint:        s.Hint,
		})
	}
	return a
}

// recordOf returns the part of a record that is written.
func recordOf(o *berthv1.Object) Record {
	return Record{
		ID:      idOf(o.GetId()),
		Of:      namesOf(NamesOf(o.GetOf())),
		Handler: term(o.GetHandler()),
		Pinned:  o.GetPinned(),
		Host:    o.GetHost(),
		Systemd: o.GetSystemd(),
		Image:   imageOf(o.GetImage()),
		State:   term(o.GetState()),
		Created: instant(o.GetCreated()),
		Started: instant(o.GetStarted()),
		Ended:   instant(o.GetEnded()),
		Code:    o.GetCode(),
		Reason:  term(o.GetReason()),
		Waits:   term(o.GetWaits()),
		Tries:   int(o.GetTries()),
	}
}

// instant returns an instant, the zero Time for nil.
func instant(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// NamesOf returns the names of a message.
func NamesOf(n *berthv1.Names) event.Names {
	return event.Names{
		Namespace: n.GetNamespace(),
		Pod:       n.GetPod(),
		UID:       n.GetUid(),
		Sandbox:   n.GetSandbox(),
		Container: n.GetContainer(),
		Attempt:   n.GetAttempt(),
	}
}
