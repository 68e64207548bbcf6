// SPDX-License-Identifier: Apache-2.0

package surface

func streamRows() []Row {
	const (
		execSync = "stream.TestExecSyncReturnsOutputAndCode"
		exec     = "test/e2e.TestExecStreamsOverAWebSocket"
		terminal = "test/e2e.TestExecHasATerminalThatFollowsTheClients"
		attach   = "test/e2e.TestAttachShowsTheOutputAndPassesTheInputOn"
		forward  = "test/e2e.TestPortForwardReachesThePodsLoopback"
		invalid  = "stream.TestRequestsThatCannotBeAreRefusedAtOnce"
	)
	return []Row{
		honoured("ExecSyncRequest.container_id", "", execSync),
		honoured("ExecSyncRequest.cmd", "", execSync, "stream.TestExecSyncRefusesWhatCannotBe"),
		honoured("ExecSyncRequest.timeout", "0 is none, and a negative one is refused", "stream.TestExecSyncReturnsWithinASecondOfItsTimeout"),
		honoured("ExecRequest.container_id", "", exec),
		honoured("ExecRequest.cmd", "", exec, invalid),
		honoured("ExecRequest.tty", "", terminal),
		honoured("ExecRequest.stdin", "", exec, invalid),
		honoured("ExecRequest.stdout", "", exec, invalid),
		honoured("ExecRequest.stderr", "with tty it is refused: a terminal has one output", exec, invalid),
		honoured("AttachRequest.container_id", "", attach),
		honoured("AttachRequest.stdin", "", attach, "stream.TestAttachWithoutInputDoesNotEndTheInputOfTheContainer"),
		noEffect("AttachRequest.tty", "whether there is a terminal is a matter of the container"),
		honoured("AttachRequest.stdout", "", attach),
		honoured("AttachRequest.stderr", "", attach),
		honoured("PortForwardRequest.pod_sandbox_id", "", forward),
		honoured("PortForwardRequest.port", "a number that is not a port is refused. A client names the ports again when it connects", forward, invalid),
	}
}
