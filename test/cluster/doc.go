// SPDX-License-Identifier: Apache-2.0

// Package cluster runs Kubernetes clusters on berth, and reports what their users notice.
//
// The nodes are network and mount namespaces of this host, each with a berth, a kubelet,
// directories, a cgroup and a network for pods of its own. The control plane is static pods on the
// first node: etcd, API server, controller manager and scheduler, from images of the programs that
// tools/lab/kubelet and tools/lab/cluster pin. kube-proxy is a DaemonSet, and CoreDNS a Deployment.
// No node has a way out of the bridge that connects them, and no image comes from a registry. Nodes
// join with certificates that the test makes, or with kubeadm. In one cluster a node runs
// containerd's CRI plug-in instead of berth.
//
// First the tests use a cluster as people do: roll-outs, services, names, volumes, jobs, streams,
// debuggers, resizes, drains. Then a node is cut off, and berth is killed, restarted and replaced
// by another version on all nodes, while a user calls a service and looks at the pods. The user's
// observations are printed as a table, and docs/clusters.md explains them.
//
// TestKubernetesSuite runs Kubernetes' own end-to-end tests on such a cluster, with `make
// test-conformance` alone: they take hours. docs/conformance.md has the result of the last run.
//
// They need root, and programs that `make test-cluster` builds within minutes before it runs them.
// Archives of images that they build stay in build/cluster.
package cluster
