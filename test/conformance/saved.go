// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// guestFile is the file with the result of the guest, in the build directory.
const guestFile = "conformance-guest.json"

// Saved is the result of critest with one runtime, perhaps on another machine.
type Saved struct {
	Made   time.Time
	Kernel string
	Cores  int
	Result Result
}

// save writes the one result that was run into a file.
func (p Page) save(file string) error {
	var ran []Result
	for _, r := range p.Results {
		if r.NotRun == "" {
			ran = append(ran, r)
		}
	}
	if len(ran) != 1 {
		return fmt.Errorf("critest ran with %d runtimes: -save takes one, which -only names: %+v", len(ran), p.Results)
	}
	b, err := json.MarshalIndent(Saved{Made: p.Made, Kernel: p.Kernel, Cores: p.Cores, Result: ran[0]}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o644)
}

// saved returns the row of the guest: the saved result, or that there is none. A result of the
// future is an error, as is a broken file.
func saved(file string, now time.Time) (Result, error) {
	const name = "berth on an older kernel, in the guest"
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Result{Runtime: name, NotRun: "there is no " + guestFile + " in build/; test/conformance/doc.go says what makes it"}, nil
	}
	if err != nil {
		return Result{}, err
	}
	var s Saved
	if err := json.Unmarshal(b, &s); err != nil {
		return Result{}, fmt.Errorf("read %s: %w", file, err)
	}
	if s.Kernel == "" || s.Made.After(now) || s.Result.Passed+s.Result.Failed == 0 {
		return Result{}, fmt.Errorf("%s is not a result of `conformance -save`: make it again, or remove it", file)
	}
	s.Result.Runtime = fmt.Sprintf("%s: Linux %s, %d cores, emulated, %s", name, s.Kernel, s.Cores, s.Made.UTC().Format("2006-01-02"))
	return s.Result, nil
}
