// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/testimage"
)

// Both daemons pull over CRI from a registry inside this process, under names whose host exists
// nowhere else.
const (
	imageHost  = "bench.berth.test"
	busybox    = imageHost + "/busybox:1"
	pauseImage = imageHost + "/pause:1"
)

// hostsToml points the host of those names at the registry.
func hostsToml(address string) string {
	return fmt.Sprintf("server = \"http://%s\"\n[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", address, address)
}

// serveImages serves all images on the loopback interface until stop is called.
func serveImages(build string, mib int) (address string, stop func(), err error) {
	pause, err := os.ReadFile(build + "/libexec/pause")
	if err != nil {
		return "", nil, err
	}
	layer, err := testimage.Layer(testimage.File{Name: "pause", Mode: 0o755, Body: pause})
	if err != nil {
		return "", nil, err
	}
	pauseImg, err := testimage.Image(v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}, layer)
	if err != nil {
		return "", nil, err
	}
	busyboxImg, err := testimage.Busybox()
	if err != nil {
		return "", nil, err
	}
	layeredImg, err := layeredImage(mib)
	if err != nil {
		return "", nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	silent := log.New(io.Discard, "", 0)
	s := &http.Server{Handler: counted(registry.New(registry.Logger(silent))), ErrorLog: silent, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(lis) }()
	stop = func() { _ = s.Close(); <-served }
	address = lis.Addr().String()
	for repository, img := range map[string]v1.Image{"busybox:1": busyboxImg, "pause:1": pauseImg, "layered:1": layeredImg} {
		tag, err := name.NewTag(address+"/"+repository, name.StrictValidation, name.Insecure)
		if err == nil {
			err = remote.Write(tag, img)
		}
		if err != nil {
			stop()
			return "", nil, fmt.Errorf("serve image %s: %w", repository, err)
		}
	}
	return address, stop, nil
}

// pull fetches the images of pods, so that no measured operation includes a pull.
func (n *node) pull(ctx context.Context) error {
	for _, ref := range []string{busybox, pauseImage} {
		if _, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			return fmt.Errorf("pull %s: %w", ref, err)
		}
	}
	return nil
}
