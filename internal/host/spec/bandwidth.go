// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Bandwidth limits the traffic of a pod, in bits a second; 0 for no limit.
type Bandwidth struct {
	Ingress uint64
	Egress  uint64
}

// The limits that make sense for an interface, in bits a second.
const (
	minBandwidth = 1000
	maxBandwidth = 1e15
)

// BandwidthOf returns the limits that the annotations of a pod ask for: Kubernetes has no other way
// to ask. A value that is not a quantity, or makes no sense, is ErrInvalidArgument.
func BandwidthOf(annotations map[string]string) (Bandwidth, error) {
	var b Bandwidth
	for name, to := range map[string]*uint64{
		"kubernetes.io/ingress-bandwidth": &b.Ingress,
		"kubernetes.io/egress-bandwidth":  &b.Egress,
	} {
		v, ok := annotations[name]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(v)
		if err != nil {
			return Bandwidth{}, fmt.Errorf("annotations: %s: %q is not a quantity such as 10M: %w", name, v, errdefs.ErrInvalidArgument)
		}
		if q.Value() < minBandwidth || q.Value() > maxBandwidth {
			return Bandwidth{}, fmt.Errorf("annotations: %s: %q is not between 1k and 1P: %w", name, v, errdefs.ErrInvalidArgument)
		}
		*to = uint64(q.Value())
	}
	return b, nil
}
