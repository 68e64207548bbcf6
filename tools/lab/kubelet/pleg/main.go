// SPDX-License-Identifier: Apache-2.0

// Command pleg is the part of a kubelet that reads the events of pods, and nothing else of it: the
// evented PLEG (pod lifecycle event generator), the generic one beside it, the cache that both
// fill, and the client and the conversions of CRI, all of them the kubelet's own code with the
// kubelet's own settings. test/kubelet runs it and asks for the content of the cache: from a pod
// whose status is missing there, a kubelet concludes that the pod is gone.
//
//	pleg SOCKET DIRECTORY
//
// The directory is for files of the kubelet's. Each line of the standard input is the UID of a pod;
// it is answered with a line of JSON, see answer.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	noop "go.opentelemetry.io/otel/trace/noop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/metrics/legacyregistry"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"
	"k8s.io/kubernetes/pkg/kubelet/metrics"
	"k8s.io/kubernetes/pkg/kubelet/pleg"
	"k8s.io/utils/clock"
)

// The kubelet's values, of pkg/kubelet/kubelet.go.
const (
	capacity   = 1000
	maxRetries = 5
)

var (
	generic = pleg.RelistDuration{RelistPeriod: time.Second, RelistThreshold: 3 * time.Minute}
	evented = pleg.RelistDuration{RelistPeriod: 300 * time.Second, RelistThreshold: 10 * time.Minute}
)

// answer is the kubelet's view of a pod.
type answer struct {
	Sandboxes   map[string]string // their states, by ID
	Containers  map[string]string
	Connections int // how often the stream of events was opened
	// how often it ended; after maxRetries the kubelet gives events up for good
	Errors int
	Seen   map[string]int // events of the PLEG about this pod so far, by type
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket, dir string) error {
	ctx, logger := context.Background(), klog.Background()
	if err := utilfeature.DefaultMutableFeatureGate.Set("EventedPLEG=true"); err != nil {
		return err
	}
	metrics.Register()
	endpoint := "unix://" + socket
	runtimes, err := remote.NewRemoteRuntimeService(ctx, endpoint, time.Minute, noop.NewTracerProvider(), false)
	if err != nil {
		return err
	}
	images, err := remote.NewRemoteImageService(ctx, endpoint, time.Minute, noop.NewTracerProvider(), false)
	if err != nil {
		return err
	}
	// The nil arguments are for making pods, which does not happen here.
	manager, _, err := kuberuntime.NewKubeGenericRuntimeManager(
		ctx,
		record.NewFakeRecorder(1),
		nil, nil, nil,
		dir, dir,
		&cadvisorapi.MachineInfo{},
		nil,
		1,
		kubecontainer.RealOS{},
		nil,
		nil,
		flowcontrol.NewBackOff(time.Second, time.Minute),
		true, nil, 0, 0,
		string(kubeletconfig.NeverVerify), nil, "", "",
		nil, true, metav1.Duration{},
		runtimes, images,
		cm.NewStubContainerManager(),
		nil, nil,
		false, "", nil, 0, kubeletconfig.NoneMemoryReservationPolicy,
		nil, noop.NewTracerProvider(), nil, nil, nil,
	)
	if err != nil {
		return err
	}
	cache, events := kubecontainer.NewCache(), make(chan *pleg.PodLifecycleEvent, capacity)
	lists := pleg.NewGenericPLEG(logger, manager, events, &evented, cache, clock.RealClock{})
	stream, err := pleg.NewEventedPLEG(logger, manager, runtimes, events, cache, lists, maxRetries, &generic, clock.RealClock{})
	if err != nil {
		return err
	}
	lists.Start()
	stream.Start()

	asked := make(chan string)
	go func() {
		defer close(asked)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			asked <- lines.Text()
		}
	}()
	seen := map[types.UID]map[string]int{}
	for out := json.NewEncoder(os.Stdout); ; {
		select {
		case e := <-events:
			if seen[e.ID] == nil {
				seen[e.ID] = map[string]int{}
			}
			seen[e.ID][string(e.Type)]++
		case uid, ok := <-asked:
			if !ok {
				return nil
			}
			status, err := cache.Get(types.UID(uid))
			if err != nil {
				return err
			}
			a := answer{Sandboxes: map[string]string{}, Containers: map[string]string{}, Seen: seen[types.UID(uid)]}
			for _, s := range status.SandboxStatuses {
				a.Sandboxes[s.GetId()] = s.GetState().String()
			}
			for _, c := range status.ContainerStatuses {
				a.Containers[c.ID.ID] = string(c.State)
			}
			if a.Connections, err = counted("kubelet_evented_pleg_connection_success_count"); err != nil {
				return err
			}
			if a.Errors, err = counted("kubelet_evented_pleg_connection_error_count"); err != nil {
				return err
			}
			if err := out.Encode(a); err != nil {
				return err
			}
		}
	}
}

// counted is the value of one of the kubelet's counters.
func counted(name string) (int, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		if f.GetName() == name {
			return int(f.GetMetric()[0].GetCounter().GetValue()), nil
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}
