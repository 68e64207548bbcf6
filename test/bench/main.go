// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

func main() {
	ctx := context.Background()
	addr, stop, err := serveImages(os.Args[1])
	if err != nil {
		panic(err)
	}
	defer stop()
	for _, k := range kinds {
		n, err := newNode(k, os.Args[1], addr)
		if err != nil {
			panic(err)
		}
		took, err := n.start(ctx, nil)
		fmt.Println(k.name, "ready", took, err)
		if err == nil {
			err = n.pull(ctx)
			fmt.Println(err)
		}
		if err == nil {
			err = killToExited(ctx, n, 10, func(d time.Duration) { fmt.Println(d) })
		}
		if err != nil {
			fmt.Println(err, n.tail())
		}
		fmt.Println(n.close())
	}
}
