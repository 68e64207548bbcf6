// SPDX-License-Identifier: Apache-2.0

package doctor

// checks are all questions, in the order in which they are answered to a person.
var checks = []check{
	{"service", "Does berth answer, and are the runtime and the network ready?", askService},
	{"configuration", "Can berth's configuration be used, and is it closed to others?", askConfiguration},
	{"programs", "Are the programs there that berth brings along?", askPrograms},
	{"handlers", "Is the OCI runtime of each handler there, without known holes, and able?", askHandlers},
	{"kernel", "Is the kernel new enough, and can it do what pods need?", askKernel},
	{"cgroups", "Are the controllers there that limits need?", askCgroups},
	{"security modules", "Can the profiles of containers be applied?", askSecurityModules},
	{"mounts", "Are the directories on file systems that can serve pods?", askMounts},
	{"disk space", "Is there room on the disks?", askSpace},
	{"disk latency", "Does the disk write what has to be durable in good time?", askLatency},
	{"clock", "Is the clock in step with others?", askClock},
	{"limits", "Does the kernel allow enough processes and watches?", askLimits},
	{"unit", "Does berth's unit keep pods alive, and berth unlimited?", askUnit},
	{"network", "Is there a CNI configuration whose plug-ins can be run?", askCNI},
	{"forwarding", "Does the kernel forward the packets of pods?", askForwarding},
	{"host ports", "Do the rules of host ports belong to pods that are there?", askRules},
	{"ports", "Are the ports free that berth serves on?", askPorts},
	{"certificates", "Are certificates valid, and their keys secret?", askCertificates},
	{"kubelet", "Does the kubelet's configuration agree with berth's?", askKubelet},
	{"swap", "Does the kubelet start with the swap that there is?", askSwap},
	{"other runtimes", "Is berth the only runtime of this node?", askLeftovers},
}
