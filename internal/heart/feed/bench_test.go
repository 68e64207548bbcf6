// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"fmt"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPublish measures Publish with subscribers that read at once, and with some that never
// read.
func BenchmarkPublish(b *testing.B) {
	for _, stalled := range []bool{false, true} {
		for _, n := range []int{0, 1, 10} {
			if stalled && n == 0 {
				continue
			}
			b.Run(fmt.Sprintf("subscribers=%d/stalled=%v", n, stalled), func(b *testing.B) {
				f := New(Config{})
				subs := make([]*Subscription, n)
				for i := range subs {
					subs[i] = f.Subscribe()
				}
				ids := make([]string, 300)
				for i := range ids {
					ids[i] = fmt.Sprint("c", i)
				}
				pod := &runtimeapi.PodSandboxStatus{Id: "p"}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					f.Publish(&event{
						ContainerId: ids[i%len(ids)], ContainerEventType: life[i/len(ids)%len(life)],
						CreatedAt: int64(i), PodSandboxStatus: pod,
					})
					if !stalled {
						for _, s := range subs {
							if ev, _ := s.take(); ev == nil {
								b.Fatal("nothing to take")
							}
						}
					}
				}
			})
		}
	}
}
