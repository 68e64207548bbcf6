// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"fmt"
	"testing"
)

// BenchmarkInventory takes inventories of nodes whose pods have two containers each. It must not
// grow faster than the number of pods. What shims and containerd's stores cost is not part of it.
func BenchmarkInventory(b *testing.B) {
	for _, pods := range []int{50, 150, 500, 1500} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			f := &fake{}
			for pod := range pods {
				id := fmt.Sprintf("pod%d", pod)
				f.add(id, "", false)
				for c := range 2 {
					f.add(fmt.Sprintf("%s-c%d", id, c), id, false)
				}
			}
			a := f.adapter(b)
			defer a.stop()
			b.ReportAllocs()
			for b.Loop() {
				inv, err := a.Inventory(b.Context())
				if err != nil || len(inv.Tasks) != 3*pods {
					b.Fatal(len(inv.Tasks), err)
				}
			}
		})
	}
}
