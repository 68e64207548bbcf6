// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
)

// serves applies the Deployment web and the pod client, and waits until the client gets an answer
// of the Service by its name.
func (c *cluster) serves(replicas int) {
	c.t.Helper()
	c.applyText(c.text("apps/web", "@REPLICAS@", fmt.Sprint(replicas), "@VERSION@", "v1"))
	c.apply("apps/client")
	c.until("the pods of web are Ready", func() error { return c.podsReady("default", replicas+1) })
	c.until("the Service answers by its name", func() error {
		out, err := c.kubectl("", "exec", "client", "--", "wget", "-q", "-O", "-", "http://web.default.svc.cluster.local/")
		if err == nil && !strings.HasPrefix(out, "v1 web-") {
			err = fmt.Errorf("it answers %q", out)
		}
		return err
	})
}
