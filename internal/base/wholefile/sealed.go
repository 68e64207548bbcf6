// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrDamaged means that a file was read, and is not as it was written.
var ErrDamaged = errors.New("the file is damaged")

// WriteSealed writes v to a file as JSON, with a checksum in a line of its own.
func WriteSealed(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, []byte(string(b)+"\n"+Sum(b)+"\n"), 0o600, -1, -1)
}

// ReadSealed reads what [WriteSealed] has written, or an earlier berth, without a checksum. After
// an error v is unchanged, or partly read if it is ErrDamaged.
func ReadSealed(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, sum, _ := bytes.Cut(b, []byte("\n"))
	switch {
	case len(sum) == 2*32+1 && sum[64] == '\n':
		if Sum(text) != string(sum[:64]) {
			return fmt.Errorf("%s: %w: its checksum is another", filepath.Base(path), ErrDamaged)
		}
	default:
		text = b
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w: %w", filepath.Base(path), ErrDamaged, err)
	}
	return nil
}
