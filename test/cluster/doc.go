// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a Kubernetes cluster on berth, and says what its users notice.
//
// The nodes are network namespaces of this host, each with a berth, a kubelet, directories, a cgroup
// and a network for pods of its own. The control plane is static pods on the first node: etcd, API
// server, controller manager and scheduler, from images of the programs that tools/kubelet and
// tools/cluster pin. kube-proxy is a DaemonSet, and CoreDNS a Deployment. No node has a way out of
// the bridge that connects them, and no image comes from a registry.
//
// First the tests use the cluster as people do: roll-outs, services, names, volumes, jobs, streams,
// drains. Then a node is cut off, and berth is killed and restarted on all nodes, while a user calls
// a service and looks at the pods. What he noticed is printed as a table, and may be no more than a
// pod that is briefly not Ready.
//
// They need root, and programs that `make test-cluster` builds within minutes before it runs them.
package cluster
