// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Fresh ends the name of a file that is being written.
const Fresh = ".berth-new"

// Write writes a file and has it on the disk. That it is in its directory is on the disk after
// [SyncDir]. An owner below 0 stands for the user who runs this.
func Write(path string, body []byte, mode fs.FileMode, uid, gid int) error {
	if err := RemoveUnfinished(path); err != nil {
		return err
	}
	next := path + Fresh
	f, err := os.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(body)
	if st, e := f.Stat(); err == nil && e == nil && uid >= 0 {
		if have, ok := st.Sys().(*syscall.Stat_t); ok && (int(have.Uid) != uid || int(have.Gid) != gid) {
			err = f.Chown(uid, gid)
		}
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return nil
}

// RemoveUnfinished removes the remains of an interrupted [Write] of a file. If there are none, or
// the directory is absent, it succeeds.
func RemoveUnfinished(path string) error {
	err := os.Remove(path + Fresh)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// SyncDir has on the disk which files a directory has.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// SumOf is the SHA-256 sum of a file, in hexadecimal digits; "" if there is none.
func SumOf(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return Sum(b), err
}

// Sum returns the SHA-256 of b in hexadecimal.
func Sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
