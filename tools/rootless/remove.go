// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// RemoveAll removes a directory of the user's with everything that containers have made in it. It
// makes a user namespace for that, in which the user is root and has all of the user's IDs. Files
// that belong neither to the user nor to those IDs stay, and are an error.
func RemoveAll(dir string) error {
	ids, err := findIDs()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	// A process that was executed before its IDs are mapped has no capabilities, and rm needs some:
	// the shell waits for a line that confirms the mapping.
	child := exec.Command("sh", "-c", `read _ <&3 && exec rm -rf -- "$0"`, dir) // a directory of the user's
	var said bytes.Buffer
	child.Stderr = &said
	child.ExtraFiles = []*os.File{r}
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	err = child.Start()
	_ = r.Close()
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	mapped := ids.mapTo(child.Process.Pid)
	if mapped == nil {
		_, mapped = w.WriteString("mapped\n")
	}
	_ = w.Close() // without the line, the shell ends
	if err := child.Wait(); err != nil || mapped != nil {
		return errors.Join(mapped, fmt.Errorf("remove %s: %w: %s", dir, err, bytes.TrimSpace(said.Bytes())))
	}
	return nil
}
