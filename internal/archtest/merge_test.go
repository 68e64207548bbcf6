// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// Every file is read, also those that no compiler reads, such as documents and the stories of the
// simulator.
func TestNoFileHasTheMarkersOfAMergeConflict(t *testing.T) {
	marker := regexp.MustCompile(`(?m)^(<{7}|>{7}|\|{7})( |$)`)
	read := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"build", ".git"}, d.Name()):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		if at := marker.FindIndex(b); at != nil {
			rel, _ := filepath.Rel(root, path)
			t.Errorf("%s:%d: the marker of a merge conflict", rel, bytes.Count(b[:at[0]], []byte("\n"))+1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 300 {
		t.Fatalf("only %d files found below %s: the test looks in the wrong place", read, root)
	}
}
