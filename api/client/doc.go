// SPDX-License-Identifier: Apache-2.0

// Package client connects to a service of CRI and of berth.v1, for tools and tests. It imports nothing
// of the runtime.
//
//	c, err := client.Dial("unix:///run/berth/berth.sock")
//	...
//	defer c.Close()
//	resp, err := c.Node.Lanes(ctx, &berthv1.LanesRequest{})
//
// [Explain] turns the errors of calls into sentences for a person.
package client
