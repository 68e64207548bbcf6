// SPDX-License-Identifier: Apache-2.0

// Package world is everything outside berth's controller, in memory: a fake containerd with its
// shims, the kernel and its processes, cgroups, networks, files, output, images, and the disk. The
// tests of internal/heart/pod run a controller in it, and test/sim the whole of berth.
//
//   - [World] is the state outside. It outlives each berth.
//   - [Life] is one berth's access to it, from [World.Begin] until [Life.Kill]. [Life.Ports] are
//     the ports of a controller, with the real adapter of package ctrd before the fake containerd.
//     Nothing that a dead berth does reaches the world.
//   - Every call passes a door ([World.Did] lists them). There it can be made to fail, to take long
//     or to hang, and the berth can be killed before its effect, or right after it.
//   - A world of [New] decides from its seed who passes first ([turns]). In one of [Free] everybody
//     passes at once, so that a test can call synctest.Wait itself.
//
// # The words of this package
//
//   - A door is a function through which the fakes pass each call of berth's to the world. Faults
//     are injected there.
//   - A turn is the permission to pass a door next. One is given at a time, in an order that
//     depends on the seed.
//   - A life is one process of berth, from its start to its end.
//   - A keeper is a service manager that keeps the file descriptors of a berth that died for the
//     next one, as systemd does.
//   - A question is asked in vain if it fails with an error that proves nothing about its subject.
//   - A call is abandoned if its caller gives up before it takes effect, and lost if it takes
//     effect and its caller gets an error.
//
// A test takes the truth from the world ([World.Process], [World.Spec], [World.Left]), and compares
// it with berth's reports. A world belongs into a bubble of testing/synctest.
package world
