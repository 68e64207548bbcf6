// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"

	mobyterm "github.com/moby/term"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/tools/manifest"
)

// runFlags are the flags of run.
type runFlags struct {
	name, workdir                       string
	env, volumes                        []string
	interactive, tty, rm, detach, hosts bool
}

func runCommand(svc *service) *cobra.Command {
	var f runFlags
	o := manifest.Options{LogDir: usersDir("logs", manifest.DefaultLogDir)}
	cmd := &cobra.Command{
		Use:   "run IMAGE [COMMAND] [ARG...]",
		Short: "Run a pod of one container from an image",
		Long: "Run a pod of one container, print its output, and exit with its code. With -it the container has a terminal, and\n" +
			"everything that is typed goes to it; Ctrl-P Ctrl-Q detaches. The image is pulled if it is not on the node. The pod is\n" +
			"in the namespace default, and stays, ended, unless --rm is given. A pod with volumes, probes or several containers is\n" +
			"run by `berth play`.",
		Example: "  berth run --rm -it docker.io/library/busybox:1.36 sh\n  berth run -d --name web -v /srv/web:/www:ro nginx",
		Args:    cobra.MinimumNArgs(1),

		ValidArgsFunction: svc.complete(images, one),
	}
	cmd.Flags().SetInterspersed(false) // arguments after the image are the command's
	cmd.Flags().StringVar(&f.name, "name", "", "name of the pod; without, it is made from the image")
	cmd.Flags().StringVarP(&f.workdir, "workdir", "w", "", "working directory")
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "set the variable KEY=VALUE; may be repeated")
	cmd.Flags().StringArrayVarP(&f.volumes, "volume", "v", nil, "mount a path of the host, HOST:CONTAINER or HOST:CONTAINER:ro; may be repeated")
	cmd.Flags().BoolVarP(&f.interactive, "interactive", "i", false, "pass the standard input on")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "give the container a terminal")
	cmd.Flags().BoolVar(&f.rm, "rm", false, "remove the pod once the container has ended")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "print the ID of the pod, and do not wait")
	cmd.Flags().BoolVar(&f.hosts, "host-network", false, "use the network of the host")
	volumeDirFlag(cmd, &o.VolumeDir)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.detach && (f.rm || f.interactive || f.tty) {
			return errors.New("--detach excludes --rm, --interactive and --tty: nothing is left here that could remove the pod, or that it could talk to")
		}
		pod, err := f.pod(args)
		if err != nil {
			return err
		}
		o.UID, o.HostIP, o.HostDNS = uuid.NewUUID(), manifest.HostIP(), manifest.HostDNS()
		plan, err := manifest.Translate(pod, o)
		if err != nil {
			return err
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if err := playedBefore(ctx, c, plan); err != nil {
				return err
			}
			p := &player{
				client:    c,
				plan:      plan,
				volumeDir: o.VolumeDir,
				out:       io.Discard,
				ip:        plan.HostIP,
			}
			if err := p.play(ctx); err != nil {
				return errors.Join(client.Explain(err), p.undo(ctx, false))
			}
			if f.detach {
				fmt.Fprintln(cmd.OutOrStdout(), p.pod)
				return nil
			}
			code, err := accompany(ctx, svc, cmd, p, f)
			switch {
			case errors.Is(err, errDetached):
				return nil
			case f.rm:
				err = errors.Join(err, p.remove(ctx))
			case ctx.Err() != nil:
				return exitError{exitInterrupted, fmt.Errorf("interrupted: pod %s goes on; `berth rm -f %s` ends and removes it", plan.Name, short(p.pod))}
			}
			if err == nil && code != 0 {
				return exitError{code: int(code)}
			}
			return err
		})
	}
	passesCodeOn(cmd, nil)
	return cmd
}

// accompany passes input and output of the container on, and returns its code.
func accompany(ctx context.Context, svc *service, cmd *cobra.Command, p *player, f runFlags) (int32, error) {
	ct := p.containers[0]
	out, errOut := raw(cmd.OutOrStdout()), raw(cmd.ErrOrStderr())
	var err error
	if f.interactive || f.tty {
		s := session{out: out, err: errOut}
		if f.tty {
			s.err = nil
		}
		if f.interactive {
			s.in = cmd.InOrStdin()
			if f.tty {
				s.in = mobyterm.NewEscapeProxy(s.in, []byte{16, 17}) // Ctrl-P Ctrl-Q
				fmt.Fprintln(cmd.ErrOrStderr(), "if there is no prompt, press Enter; Ctrl-P Ctrl-Q detaches")
			}
		}
		err = talk(ctx, svc, &s, f.tty, cmd.InOrStdin(), func() (string, error) {
			resp, err := p.client.Attach(ctx, &runtimeapi.AttachRequest{
				ContainerId: ct.id,
				Stdin:       f.interactive,
				Stdout:      true,
				Stderr:      !f.tty,
				Tty:         f.tty,
			})
			return resp.GetUrl(), err
		})
		st, serr := p.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ct.id})
		if err != nil && serr == nil && st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED { // before it was attached
			err = containerLog(ctx, p.client, object{id: ct.id, name: ct.name}, logOptions{tail: -1, out: out, err: errOut})
		}
	} else {
		err = containerLog(ctx, p.client, object{id: ct.id, name: ct.name}, logOptions{follow: true, tail: -1, out: out, err: errOut})
	}
	if ctx.Err() != nil || errors.Is(err, errDetached) {
		return 0, err
	}
	st, serr := p.ended(ctx, ct.id) // a stream that broke does not hide the end
	return st.GetExitCode(), serr
}

// notInNames matches the characters that the name of a pod cannot have.
var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// pod returns the pod that is run.
func (f runFlags) pod(args []string) (*corev1.Pod, error) {
	image, _, _ := strings.Cut(args[0], "@")
	base := notInNames.ReplaceAllString(strings.ToLower(strings.Split(filepath.Base(image), ":")[0]), "-")
	base = strings.Trim(base, "-")
	name := f.name
	if name == "" {
		name = base + "-" + strings.ToLower(rand.Text()[:5])
	}
	ct := corev1.Container{
		Name:            base,
		Image:           args[0],
		ImagePullPolicy: corev1.PullIfNotPresent,
		Args:            args[1:],
		WorkingDir:      f.workdir,
		Stdin:           f.interactive,
		StdinOnce:       f.interactive,
		TTY:             f.tty,
	}
	for _, s := range f.env {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--env %q is not KEY=VALUE", s)
		}
		ct.Env = append(ct.Env, corev1.EnvVar{Name: key, Value: value})
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, HostNetwork: f.hosts},
	}
	for i, s := range f.volumes {
		parts := strings.Split(s, ":")
		if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "ro" && parts[2] != "rw" {
			return nil, fmt.Errorf("--volume %q is not HOST:CONTAINER or HOST:CONTAINER:ro", s)
		}
		host, err := absolute(parts[0])
		if err != nil {
			return nil, err
		}
		v := fmt.Sprintf("v%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name:         v,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}},
		})
		ct.VolumeMounts = append(ct.VolumeMounts, corev1.VolumeMount{Name: v, MountPath: parts[1], ReadOnly: len(parts) == 3 && parts[2] == "ro"})
	}
	pod.Spec.Containers = []corev1.Container{ct}
	return pod, nil
}
