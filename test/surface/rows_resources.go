// SPDX-License-Identifier: Apache-2.0

package surface

func resourceRows() []Row {
	return []Row{
		honoured("LinuxContainerResources.cpu_period", "", "spec.TestResourcesThatCannotBeAreRefused"),
		honoured("LinuxContainerResources.cpu_quota", "-1 means without a limit", "spec.TestResourcesThatCannotBeAreRefused"),
		honoured("LinuxContainerResources.cpu_shares", "", "pod.TestAStatusHasTheUserAndTheResourcesThatTheContainerHas"),
		honoured("LinuxContainerResources.memory_limit_in_bytes", "", "test/e2e.TestEveryOOMKillIsReportedAndNoOther"),
		honoured("LinuxContainerResources.oom_score_adj", "raised to the lowest value that berth may write, with an entry in the timeline", "spec.TestWhatTheHostCannotDoIsReported"),
		honoured("LinuxContainerResources.cpuset_cpus", "", "spec.TestResourcesThatCannotBeAreRefused"),
		honoured("LinuxContainerResources.cpuset_mems", "", "spec.TestResourcesThatCannotBeAreRefused"),
		honoured("LinuxContainerResources.hugepage_limits", "left out where the host has no hugetlb controller, and refused if pod.require_hugetlb is set or the controller does not know the page size",
			"spec.TestAHugepageLimitOfZeroNeedsNoController", "spec.TestAHugepageLimitThatCannotBeKeptIsRefused",
			"spec.TestAHugepageLimitIsLeftOutWithoutTheController"),
		honoured("HugepageLimit.page_size", "", "spec.TestPageSizesAreSpelledAsTheControllerSpellsThem"),
		honoured("HugepageLimit.limit", ""),
		honoured("LinuxContainerResources.unified", "with cgroup v2; with cgroup v1 it is left out, with an entry in the timeline", "spec.TestWhatTheHostCannotDoIsReported"),
		honoured("LinuxContainerResources.memory_swap_limit_in_bytes", "if the kernel accounts swap; otherwise it is left out, with an entry in the timeline",
			"spec.TestResourcesThatCannotBeAreRefused"),
	}
}
