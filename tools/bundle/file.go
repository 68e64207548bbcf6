// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"berth/internal/base/event"
)

// maxRead is how many bytes of a bundle are read at most, unpacked, and maxLine how long a line may
// be.
const (
	maxRead = 512 << 20
	maxLine = 1 << 20
)

// The files of a bundle.
const (
	manifestFile      = "manifest.json"
	configurationFile = "configuration.json"
	recordsFile       = "records.jsonl"
	entriesFile       = "entries.jsonl"
)

// Write writes the bundle. It is called once, after everything was added.
func (b *Bundle) Write(w io.Writer) error {
	b.finish()
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	for _, f := range []struct {
		name  string
		write func(w io.Writer, e *json.Encoder) error
	}{
		{manifestFile, func(_ io.Writer, e *json.Encoder) error { e.SetIndent("", "  "); return e.Encode(b.Manifest) }},
		{configurationFile, func(w io.Writer, _ *json.Encoder) error { return writeSettings(w, b.Configuration) }},
		{recordsFile, func(_ io.Writer, e *json.Encoder) error { return lines(e, b.Records) }},
		{entriesFile, func(_ io.Writer, e *json.Encoder) error { return lines(e, b.Entries) }},
	} {
		var body bytes.Buffer
		if err := f.write(&body, json.NewEncoder(&body)); err != nil {
			return fmt.Errorf("write %s of the bundle: %w", f.name, err)
		}
		h := &tar.Header{
			Name:    f.name,
			Mode:    0o600,
			Size:    int64(body.Len()),
			ModTime: b.Manifest.Made.Truncate(time.Second),
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(body.Bytes()); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), zip.Close())
}

func lines[T any](e *json.Encoder, list []T) error {
	for _, v := range list {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// Read reads a bundle. A file that is not one is an error that says so, and one of a newer format
// is [ErrFormat]. Entries of a kind that this berth does not know are left out, and Missing says
// so.
func Read(r io.Reader) (*Bundle, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("this is not a bundle: %w", err)
	}
	b := &Bundle{}
	unknown := 0
	for in := tar.NewReader(io.LimitReader(zip, maxRead)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the bundle: %w", err)
		}
		if h.Name != manifestFile && b.Manifest.Format == 0 {
			return nil, fmt.Errorf("this is not a bundle: it begins with %q and not with %s", h.Name, manifestFile)
		}
		switch h.Name {
		case manifestFile:
			if err = json.NewDecoder(in).Decode(&b.Manifest); err == nil && b.Manifest.Format > Format {
				return nil, fmt.Errorf("%w: its format is %d, and this berth reads up to %d", ErrFormat, b.Manifest.Format, Format)
			}
			if err == nil && b.Manifest.Format <= 0 {
				return nil, fmt.Errorf("this is not a bundle: %s has no format", manifestFile)
			}
		case configurationFile:
			b.Configuration, err = readSettings(in)
		case recordsFile:
			err = each(in, func(line []byte) error {
				var rec Record
				err := json.Unmarshal(line, &rec)
				b.Records = append(b.Records, rec)
				return err
			})
		case entriesFile:
			err = each(in, func(line []byte) error {
				var e Entry
				err := json.Unmarshal(line, &e)
				if errors.Is(err, event.ErrUnknown) {
					unknown++
					return nil
				}
				b.Entries = append(b.Entries, e)
				return err
			})
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of the bundle: %w", h.Name, err)
		}
	}
	if b.Manifest.Format == 0 {
		return nil, fmt.Errorf("this is not a bundle: it has no %s", manifestFile)
	}
	if unknown > 0 {
		b.Miss("%d entries are of a kind that this berth does not know.", unknown)
	}
	return b, nil
}

// each calls f with each line.
func each(r io.Reader, f func(line []byte) error) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for n := 1; in.Scan(); n++ {
		if n > MaxEntries {
			return fmt.Errorf("there are more than %d lines", MaxEntries)
		}
		if err := f(in.Bytes()); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return in.Err()
}
