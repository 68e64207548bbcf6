// SPDX-License-Identifier: Apache-2.0

// Command faulty fails, stalls or dies on demand. Under the name of runc, of a CNI plug-in or of
// containerd's shim it does the work of that program, except for the steps with a rule. berth's
// fault tests put it in their places.
//
// It is installed as BASE/ANY/NAME, with the program that it replaces at BASE/real/NAME (the shim
// is linked in) and the rules in BASE/rules. A rule is a file named PROGRAM.STEP, read at each
// step, so that rules come and go while programs run:
//
//	runc.COMMAND            create, start, kill, delete, state ...
//	PLUGIN.COMMAND          bridge.ADD, portmap.DEL ...
//	shim.METHOD             Create, Start, Kill, Delete, Wait, State ... of the task service
//	shim.exit-event         the publishing of a TaskExit; oom-event, start-event and so on likewise
//	shim.bootstrap          the start of a shim
//	shim.cleanup            the program that containerd calls once a shim died
//
// The first line of a rule is the fault:
//
//	stall [60s]             wait, at most so long, until the rule is gone; then go on
//	fail TEXT               an error with the text TEXT
//	die                     SIGKILL to itself
//	swallow                 succeed without doing it
//	stall-after, fail-after TEXT, die-after     the same after the step was done and before its
//	                                            caller gets the answer
//
// and further lines limit it:
//
//	id PREFIX               a container or pod whose ID begins so; several lines: any of these
//	times N                 the first N times
//
// Each time that a rule acts, a line "PID ID" is added to BASE/rules/PROGRAM.STEP.hits before it
// does.
//
// With a file BASE/shared in place, the shim is one that several pods can share.
//
// Under the name of held it is the program of a container that one SIGKILL does not end.
package main
