// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

func cpCommand(svc *service) *cobra.Command {
	var container string
	cmd := &cobra.Command{
		Use:   "cp NAME:PATH PATH | cp PATH NAME:PATH",
		Short: "Copy files or directories from or to a container",
		Long: "Copy a file or a directory from a container that runs, or into one. Where the destination is a directory that exists,\n" +
			"the copy is made in it. The container needs the program tar. Out of a container, regular files, directories and\n" +
			"symbolic links are copied, and nothing outside of the destination is written, whatever the container sends.",
		Example: "  berth cp web:/var/log/app.log .\n  berth cp ./conf default/web/app:/etc/app",
		Args:    cobra.ExactArgs(2),
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "the container of the pod NAME")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		from, fromPath, out := strings.Cut(args[0], ":")
		to, toPath, in := strings.Cut(args[1], ":")
		if out == in {
			return errors.New("one of the two is NAME:PATH, and the other one a path here; a path with a colon begins with ./")
		}
		name := from
		if in {
			name = to
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			o, err := resolveRunning(ctx, c, name, container, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if out {
				return copyOut(ctx, svc, c, o, fromPath, args[1])
			}
			return copyIn(ctx, svc, c, o, args[0], toPath)
		})
	}
	return cmd
}

// tar runs tar in a container.
func runTar(ctx context.Context, svc *service, c *client.Client, o object, in io.Reader, out io.Writer, args ...string) error {
	var problem bytes.Buffer
	s := session{in: in, out: out, err: &problem}
	err := talk(ctx, svc, &s, false, nil, func() (string, error) {
		resp, err := c.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: o.id,
			Cmd:         append([]string{"tar"}, args...),
			Stdin:       in != nil,
			Stdout:      true,
			Stderr:      true,
		})
		return resp.GetUrl(), err
	})
	if err != nil && problem.Len() > 0 {
		return fmt.Errorf("tar in container %s: %s", o.name, strings.TrimSpace(problem.String()))
	}
	if err != nil {
		return fmt.Errorf("tar in container %s, which needs the program: %w", o.name, err)
	}
	return nil
}

// copyOut copies a path of a container to one here.
func copyOut(ctx context.Context, svc *service, c *client.Client, o object, from, to string) error {
	from = path.Clean("/" + from)
	dir, base := filepath.Split(filepath.Clean(to))
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		dir, base = to, path.Base(from)
	}
	root, err := os.OpenRoot(filepath.Clean(dir + "/."))
	if err != nil {
		return err
	}
	defer root.Close()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := runTar(ctx, svc, c, o, nil, w, "cf", "-", "-C", path.Dir(from), path.Base(from))
		_ = w.CloseWithError(err)
		sent <- err
	}()
	err = unpack(root, r, path.Base(from), base)
	_ = r.CloseWithError(err)
	return errors.Join(<-sent, err)
}

// unpack writes the files of an archive below root, under the name as in place of the first part
// name. The archive comes from a container: the kernel resolves each path within root.
func unpack(root *os.Root, r io.Reader, name, as string) error {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r) // the padding of the archive
			return err
		}
		if err != nil {
			return err
		}
		rest, ok := strings.CutPrefix(path.Clean(h.Name), name)
		if name == "/" || name == "." {
			rest, ok = "/"+path.Clean(h.Name), true
		}
		if !ok || rest != "" && rest[0] != '/' {
			return fmt.Errorf("the container sends %q instead of %s", h.Name, name)
		}
		at := path.Join(as, rest)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(at, os.FileMode(h.Mode).Perm()|0o700)
		case tar.TypeSymlink:
			_ = root.Remove(at)
			err = root.Symlink(h.Linkname, at)
		case tar.TypeReg:
			err = writeIn(root, at, t, os.FileMode(h.Mode).Perm())
		}
		if err != nil {
			return err
		}
	}
}

// writeIn writes a file below root.
func writeIn(root *os.Root, at string, r io.Reader, mode os.FileMode) error {
	f, err := root.OpenFile(at, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// copyIn copies a path here to one of a container.
func copyIn(ctx context.Context, svc *service, c *client.Client, o object, from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	dir, base := path.Split(path.Clean("/" + to))
	empty := bytes.NewReader(make([]byte, 10240)) // an archive of nothing is unpacked into a directory alone
	if runTar(ctx, svc, c, o, empty, io.Discard, "xf", "-", "-C", path.Clean("/"+to)) == nil {
		dir, base = path.Clean("/"+to), filepath.Base(filepath.Clean(from))
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(pack(w, from, base, st)) }()
	err = runTar(ctx, svc, c, o, r, io.Discard, "xf", "-", "-C", dir)
	_ = r.Close()
	return err
}

// pack writes a file or a directory as an archive whose first part is name.
func pack(w io.Writer, from, name string, st os.FileInfo) error {
	t := tar.NewWriter(w)
	add := func(at string, info os.FileInfo) error {
		target := ""
		if info.Mode()&os.ModeSymlink != 0 {
			var err error
			if target, err = os.Readlink(at); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = path.Join(name, filepath.ToSlash(rest)), 0, 0, "", ""
		if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(at)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	}
	err := add(from, st)
	if err == nil && st.IsDir() {
		err = filepath.Walk(from, func(at string, info os.FileInfo, err error) error {
			if err != nil || at == from {
				return err
			}
			return add(at, info)
		})
	}
	return errors.Join(err, t.Close())
}
